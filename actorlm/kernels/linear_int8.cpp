// y = x W^T + b, with W as bytes: one scale for each output, in panels of 16 outputs: [out / 16][in / 4][16][4], stored
// as w + 128. Inputs become bytes with one scale a row.
//
// A sum of products is exact, so its bits depend on nothing but the row and the weights.
#include "abi.h"
#include "pool.h"
#include "quantized_rows.h"
#include "simd_int.h"
#include "tiles.h"

namespace actorlm {
namespace {

constexpr int OFFSET = 128;
#if defined(__AVX512VNNI__)
constexpr int MAX_ROWS = 12, PANELS = 2;  // 24 sums, 2 weights and an input of 32 registers
#else
constexpr int MAX_ROWS = 4, PANELS = 1;  // with AVX2 8 sums, 4 weights, an input and its products of 16 registers
#endif
constexpr int FETCHING_ROWS = 5;  // from which on memory has time meanwhile
constexpr long TILE_BLOCKS = 32;
constexpr long MIN_CHUNK = 128 << 10;

struct Int8Linear {
  Product product;
  const uint8_t *panels;
  const float *scales;  // [outputs up to a multiple of 16]
  const RowBlocks &blocks;
  const QuantizedRows &in;

  long quads() const { return (product.inputs + QUAD - 1) / QUAD; }
  long panel_bytes() const { return quads() * QUAD_BYTES; }
};

template <int ROWS, int WIDTH>
void multiply(const Int8Linear &job, long row, long panel, const uint8_t *next) {
  const QuantizedRows::Block in = job.in.block(row);
  const long panel_bytes = job.panel_bytes();
  const uint8_t *weights = job.panels + panel * panel_bytes;
  Ints sums[ROWS][WIDTH];
  unrolled<ROWS>([&](auto r) { unrolled<WIDTH>([&](auto p) { sums[r][p] = splat(in.starts[r]); }); });
  const int8_t *x = in.numbers;
  for (long q = 0; q < panel_bytes; q += QUAD_BYTES, x += ROWS * QUAD) {
    Quad<OFFSET> w[WIDTH];
    unrolled<WIDTH>([&](auto p) {
      w[p] = load_quad<OFFSET>(weights + p * panel_bytes + q);
      if constexpr (ROWS >= FETCHING_ROWS) fetch(next + p * panel_bytes + q);
    });
    unrolled<ROWS>([&](auto r) { unrolled<WIDTH>([&](auto p) { sums[r][p] = dot(sums[r][p], w[p], x + r * QUAD); }); });
  }
  unrolled<ROWS>([&](auto r) {
    const Vec scale = broadcast(in.scales[r]);
    unrolled<WIDTH>([&](auto p) {
      job.product.put(row + r, panel + p, to_vec(sums[r][p]) * (load(job.scales + (panel + p) * LANES) * scale));
    });
  });
}

void multiply_tile(const Int8Linear &job, const Tile &tile) {
  for (long panel = tile.panel, count; panel < tile.end_panel; panel += count) {
    const bool wide = PANELS > 1 && panel + PANELS <= tile.end_panel;
    count = wide ? PANELS : 1;
    const long after = panel + 2 * count <= tile.end_panel ? panel + count : panel;
    const uint8_t *next = job.panels + after * job.panel_bytes();
    for (long block = tile.block; block < tile.end_block; block++) {
      with_rows<MAX_ROWS>(job.blocks.height(block), [&](auto height) {
        constexpr int ROWS = decltype(height)::value;
        if (wide) return multiply<ROWS, PANELS>(job, job.blocks.begin(block), panel, next);
        multiply<ROWS, 1>(job, job.blocks.begin(block), panel, next);
      });
    }
  }
}

}  // namespace
}  // namespace actorlm

using namespace actorlm;

// Panels of the rows [begin, begin + count) of a matrix of bytes with sign.
ACTORLM_API void pack_int8(uint8_t *panels, const int8_t *rows, long begin, long count, long inputs) {
  const long panel_bytes = (inputs + QUAD - 1) / QUAD * QUAD_BYTES;
  for (long i = 0; i < count; i++) {
    uint8_t *lane = panels + (begin + i) / LANES * panel_bytes + (begin + i) % LANES * QUAD;
    for (long k = 0; k < inputs; k++) {
      lane[k / QUAD * QUAD_BYTES + k % QUAD] = uint8_t(rows[i * inputs + k] + OFFSET);
    }
  }
}

// Sets `out` to x W^T + b, or adds that to it.
ACTORLM_API void linear_int8(Pool *pool, const uint8_t *panels, const float *scales, const float *bias, const float *in,
                             float *out, long rows, long inputs, long outputs, long in_stride, long out_stride,
                             int adds) {
  static thread_local QuantizedRows quantized;
  if (rows == 0) return;
  const Product product{out, in, bias, rows, inputs, outputs, in_stride, out_stride, adds != 0};
  const RowBlocks blocks(rows, MAX_ROWS);
  quantized.make_whole<OFFSET>(*pool, product, blocks);
  const Int8Linear job{product, panels, scales, blocks, quantized};
  const Tiling tiling{blocks, product.num_panels(), TILE_BLOCKS, inputs * LANES, MIN_CHUNK, PANELS};
  run_tiles(*pool, tiling, [&](const Tile &tile) { multiply_tile(job, tile); });
}

// Rows `ids` of W, as floats.
ACTORLM_API void gather_int8(const uint8_t *panels, const float *scales, const int64_t *ids, float *out, long count,
                             long inputs) {
  const long panel_bytes = (inputs + QUAD - 1) / QUAD * QUAD_BYTES;
  for (long i = 0; i < count; i++) {
    const uint8_t *lane = panels + ids[i] / LANES * panel_bytes + ids[i] % LANES * QUAD;
    for (long k = 0; k < inputs; k++) {
      out[i * inputs + k] = float(int(lane[k / QUAD * QUAD_BYTES + k % QUAD]) - OFFSET) * scales[ids[i]];
    }
  }
}
