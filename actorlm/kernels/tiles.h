// How a matrix product is cut: its rows into blocks that are multiplied at once, the rest into tiles for the threads.
#pragma once

#include <algorithm>
#include <type_traits>

#include "pool.h"
#include "simd.h"
#include "unrolled.h"

namespace actorlm {

constexpr long CHUNKS_A_THREAD = 4;  // so that a thread that is held up costs a quarter of its share

// Blocks of nearly equal height, at most `max_rows`. What is read of a block's rows together lies together.
struct RowBlocks {
  long rows, count;

  RowBlocks(long rows, long max_rows) : rows(rows), count((rows + max_rows - 1) / max_rows) {}

  long begin(long block) const { return block * rows / count; }
  long height(long block) const { return begin(block + 1) - begin(block); }
  long of(long row) const { return ((row + 1) * count - 1) / rows; }
};

// Calls function(std::integral_constant<int, rows>()).
template <int MAX_ROWS, int ROWS = 1, class Function>
void with_rows(long rows, const Function &function) {
  if constexpr (ROWS <= MAX_ROWS) {
    if (rows == ROWS) return function(std::integral_constant<int, ROWS>());
    with_rows<MAX_ROWS, ROWS + 1>(rows, function);
  }
}

struct Tiling {
  const RowBlocks &blocks;
  long num_panels;   // of 16 outputs
  long tile_blocks;  // at most in a tile, whose inputs stay in the second-level cache
  long panel_work;   // multiply-adds of a panel for each row
  long min_chunk;    // multiply-adds that are worth handing to a thread
  long wide;         // panels that are computed side by side
};

// Some blocks times some panels.
struct Tile {
  long block, end_block, panel, end_panel;
};

// Calls function(tile) for tiles that make up the product, on all threads.
template <class Function>
void run_tiles(Pool &pool, const Tiling &all, const Function &function) {
  if (all.blocks.rows == 0) return;
  const long tiles = (all.blocks.count + all.tile_blocks - 1) / all.tile_blocks;
  const long depth = (all.blocks.count + tiles - 1) / tiles, chunks = pool.threads() * CHUNKS_A_THREAD;
  const long work = (all.blocks.rows + tiles - 1) / tiles * all.panel_work;
  const long wanted = (all.num_panels * tiles + chunks - 1) / chunks, worth = (all.min_chunk + work - 1) / work;
  const long width = (std::max(wanted, worth) + all.wide - 1) / all.wide * all.wide;
  const long columns = (all.num_panels + width - 1) / width;
  pool.run(tiles * columns, [&](long chunk) {
    const long block = chunk / columns * depth, panel = chunk % columns * width;
    const long end_block = std::min(block + depth, all.blocks.count), end = std::min(panel + width, all.num_panels);
    if (block < end_block) function(Tile{block, end_block, panel, end});
  });
}

// What a linear layer reads and writes, whatever its weights are.
struct Product {
  float *out;         // [rows, outputs], rows at a distance of out_stride
  const float *in;    // [rows, inputs], rows at a distance of in_stride
  const float *bias;  // [outputs] or null
  long rows, inputs, outputs, in_stride, out_stride;
  bool adds;  // to what `out` holds, instead of replacing it

  long num_panels() const { return (outputs + LANES - 1) / LANES; }
  float *place(long row, long panel) const { return out + row * out_stride + panel * LANES; }

  void put(long row, long panel, Vec sum) const {
    float *to = place(row, panel);
    const long size = outputs - panel * LANES;
    if (bias) sum = sum + load_part(bias + panel * LANES, 0, size);
    if (adds) sum = load_part(to, 0, size) + sum;
    store_part(to, sum, 0, size);
  }
};

// Calls function(row) for all rows, on all threads where the numbers of a row, and of all, are worth it.
template <class Function>
void for_rows(Pool &pool, long rows, long numbers, const Function &function) {
  const long chunk = std::max(1L, (4096 + numbers - 1) / numbers);
  pool.run((rows + chunk - 1) / chunk, [&](long part) {
    for (long row = part * chunk; row < std::min(rows, (part + 1) * chunk); row++) function(row);
  });
}

}  // namespace actorlm
