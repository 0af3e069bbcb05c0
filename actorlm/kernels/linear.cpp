// y = x W^T + b, with W [out, in] packed into panels of 16 rows: [out / 16][in][16], the last one padded with zeros.
//
// Each number of y is one chain of fused multiply-adds over the inputs in order, whatever the number of rows of x and
// wherever in it a row stands. So a row has the same bits alone and in any batch.
#include <vector>

#include "abi.h"
#include "pool.h"
#include "simd.h"
#include "tiles.h"

namespace actorlm {
namespace {

#if defined(__AVX512F__)
constexpr int MAX_ROWS = 14, PANELS = 2;  // 28 sums, 2 weights and an input of 32 registers
#else
constexpr int MAX_ROWS = 6, PANELS = 1;  // with AVX2 12 sums, 2 weights and an input of 16 registers
#endif
constexpr int FETCHING_ROWS = 5;  // from which on memory has time meanwhile; with fewer the CPU foresees the reads
constexpr long TILE_BLOCKS = 98 / MAX_ROWS;
constexpr long MIN_CHUNK = 32 << 10;

// The weights that come next, which are brought near while others are multiplied.
struct Next {
  const char *first;  // byte
  long apart;         // bytes from a panel to the one beside it
  long step;          // bytes of each panel that are fetched for each input
};

struct Job {
  Product product;
  const RowBlocks &blocks;
  const float *in;  // the rows of a block together: an input of each, then the next
};

template <class Weight, int ROWS, int WIDTH>
void multiply(const Job &job, const Weight *weights, long row, long panel, const Next &next) {
  const long inputs = job.product.inputs, panel_size = inputs * LANES;
  const float *x = job.in + row * inputs;
  Vec sums[ROWS][WIDTH];
  unrolled<ROWS>([&](auto r) {
    unrolled<WIDTH>([&](auto p) {
      sums[r][p] = broadcast(0.0f);
      fetch_to_write(job.product.place(row + r, panel + p));
    });
  });
  for (long k = 0; k < inputs; k++, x += ROWS) {
    Vec w[WIDTH];
    unrolled<WIDTH>([&](auto p) {
      w[p] = load(weights + p * panel_size + k * LANES);
      if constexpr (ROWS >= FETCHING_ROWS) fetch(next.first + p * next.apart + k * next.step);
    });
    unrolled<ROWS>([&](auto r) {
      const Vec number = broadcast(x[r]);
      unrolled<WIDTH>([&](auto p) { sums[r][p] = fma(number, w[p], sums[r][p]); });
    });
  }
  unrolled<ROWS>([&](auto r) { unrolled<WIDTH>([&](auto p) { job.product.put(row + r, panel + p, sums[r][p]); }); });
}

// One panel, or PANELS of them if `wide`, times a tile's blocks. Each block fetches its share of the panels at `next`,
// which are panel_bytes apart.
template <class Weight>
void multiply_blocks(const Job &job, const Weight *weights, const Tile &tile, long panel, bool wide, const void *next,
                     long panel_bytes) {
  const long inputs = job.product.inputs, step = panel_bytes / inputs / (tile.end_block - tile.block);
  Next share{(const char *)next, panel_bytes, step};
  for (long block = tile.block; block < tile.end_block; block++, share.first += step * inputs) {
    const long row = job.blocks.begin(block);
    with_rows<MAX_ROWS>(job.blocks.height(block), [&](auto height) {
      constexpr int ROWS = decltype(height)::value;
      if (wide) return multiply<Weight, ROWS, PANELS>(job, weights, row, panel, share);
      multiply<Weight, ROWS, 1>(job, weights, row, panel, share);
    });
  }
}

// Panels as floats. Worth it once several blocks of rows would convert the same weights.
template <class Weight>
const float *widened(const Weight *panels, long count) {
  static thread_local std::vector<float> floats;
  floats.resize(size_t(count));
  for (long i = 0; i < count; i += LANES) store(floats.data() + i, load(panels + i));
  return floats.data();
}

template <class Weight>
void multiply_tile(const Job &job, const Weight *panels, const Tile &tile) {
  const long panel_size = job.product.inputs * LANES, panel_bytes = panel_size * long(sizeof(Weight));
  for (long panel = tile.panel, count; panel < tile.end_panel; panel += count) {
    const bool wide = PANELS > 1 && panel + PANELS <= tile.end_panel;
    count = wide ? PANELS : 1;
    const long after = panel + 2 * count <= tile.end_panel ? panel + count : panel;
    const Weight *weights = panels + panel * panel_size, *next = panels + after * panel_size;
    if (sizeof(Weight) < sizeof(float) && tile.end_block - tile.block > 1) {
      multiply_blocks(job, widened(weights, count * panel_size), tile, panel, wide, next, panel_bytes);
    } else {
      multiply_blocks(job, weights, tile, panel, wide, next, panel_bytes);
    }
  }
}

// The inputs in the order in which they are multiplied. A row alone is in that order already.
const float *ordered(Pool &pool, const Product &product, const RowBlocks &blocks) {
  static thread_local std::vector<float> floats;
  if (product.rows == 1) return product.in;
  if (long(floats.size()) < product.rows * product.inputs) floats.resize(size_t(product.rows * product.inputs));
  float *to = floats.data();
  for_rows(pool, product.rows, product.inputs, [&](long row) {
    const long begin = blocks.begin(blocks.of(row)), height = blocks.height(blocks.of(row));
    const float *from = product.in + row * product.in_stride;
    float *place = to + begin * product.inputs + row - begin;
    for (long k = 0; k < product.inputs; k++) place[k * height] = from[k];
  });
  return to;
}

template <class Weight>
void multiply_all(Pool &pool, const Product &product, const Weight *panels) {
  if (product.rows == 0) return;
  const RowBlocks blocks(product.rows, MAX_ROWS);
  const Job job{product, blocks, ordered(pool, product, blocks)};
  const Tiling tiling{blocks, product.num_panels(), TILE_BLOCKS, product.inputs * LANES, MIN_CHUNK, PANELS};
  run_tiles(pool, tiling, [&](const Tile &tile) { multiply_tile(job, panels, tile); });
}

template <class Weight>
void pack_rows(Weight *panels, const Weight *rows, long begin, long count, long inputs) {
  for (long i = 0; i < count; i++) {
    const long row = begin + i;
    Weight *lane = panels + row / LANES * inputs * LANES + row % LANES;
    for (long k = 0; k < inputs; k++) lane[k * LANES] = rows[i * inputs + k];
  }
}

template <class Weight>
void gather_rows(const Weight *panels, const int64_t *ids, float *out, long count, long inputs) {
  for (long i = 0; i < count; i++) {
    const Weight *lane = panels + ids[i] / LANES * inputs * LANES + ids[i] % LANES;
    for (long k = 0; k < inputs; k++) out[i * inputs + k] = to_float(lane[k * LANES]);
  }
}

}  // namespace
}  // namespace actorlm

using namespace actorlm;

// Panels of a row-major matrix's rows [begin, begin + count); both of one type of 4 or 2 bytes.
ACTORLM_API void pack(int bytes, void *panels, const void *rows, long begin, long count, long inputs) {
  if (bytes == 4) return pack_rows((uint32_t *)panels, (const uint32_t *)rows, begin, count, inputs);
  pack_rows((uint16_t *)panels, (const uint16_t *)rows, begin, count, inputs);
}

// Sets `out` to x W^T + b, or adds that to it.
ACTORLM_API void linear(Pool *pool, Type type, const void *panels, const float *bias, const float *in, float *out,
                        long rows, long inputs, long outputs, long in_stride, long out_stride, int adds) {
  const Product job{out, in, bias, rows, inputs, outputs, in_stride, out_stride, adds != 0};
  switch (type) {
    case Type::FLOAT32: return multiply_all(*pool, job, (const float *)panels);
    case Type::FLOAT16: return multiply_all(*pool, job, (const Half *)panels);
    case Type::BFLOAT16: return multiply_all(*pool, job, (const BFloat16 *)panels);
  }
}

// Rows `ids` of W, as floats: an embedding that is the head's matrix, too.
ACTORLM_API void gather(Type type, const void *panels, const int64_t *ids, float *out, long count, long inputs) {
  switch (type) {
    case Type::FLOAT32: return gather_rows((const float *)panels, ids, out, count, inputs);
    case Type::FLOAT16: return gather_rows((const Half *)panels, ids, out, count, inputs);
    case Type::BFLOAT16: return gather_rows((const BFloat16 *)panels, ids, out, count, inputs);
  }
}
