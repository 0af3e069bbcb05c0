// y = x W^T + b, with W in the blocks of a GGUF file (gguf_blocks.h), whose numbers are used as they are. Inputs become
// bytes with one scale for each 32.
//
// The sum of STEP products is exact. Those of a row and an output are scaled and added in order, in one chain of fused
// multiply-adds, whatever the number of rows. So a row has the same bits alone and in any batch.
#include <vector>

#include "abi.h"
#include "gguf_blocks.h"
#include "pool.h"
#include "quantized_rows.h"
#include "tiles.h"

namespace actorlm {
namespace {

#if defined(__AVX512F__)
constexpr int MAX_ROWS = 11;  // 11 sums, 11 totals, weights, a scale and a minimum of 32 registers
#else
constexpr int MAX_ROWS = 3;  // with AVX2 6 sums, 4 weights, an input and its products of 16 registers
#endif
constexpr long TILE_BLOCKS = 384 / MAX_ROWS;
constexpr long MIN_CHUNK = 128 << 10;

template <class Form>
struct BlockLinear {
  Product product;
  const uint8_t *panels;
  const RowBlocks &blocks;
  const QuantizedRows &in;

  long units() const { return product.inputs / Form::INPUTS; }
  const uint8_t *panel(long number) const { return panels + number * units() * Form::PANEL_BYTES; }
};

// Adds to the totals of some rows what the inputs of one unit make.
template <class Form, int ROWS>
[[gnu::always_inline]] inline void add_unit(const QuantizedRows::Block &in, long number, const Unit<Form> &unit,
                                            Vec (&totals)[ROWS]) {
  constexpr long STEPS = Form::INPUTS / Form::STEP, QUADS = Form::STEP / QUAD;
  for (long step = 0; step < STEPS; step++) {
    const long at = number * STEPS + step, part = at * Form::STEP / X_BLOCK;
    const int8_t *x = in.numbers + at * Form::STEP * ROWS;
    Ints sums[ROWS];
    unrolled<ROWS>([&](auto r) { sums[r] = splat(in.starts[at * ROWS + r]); });
    for (long q = 0; q < QUADS; q++) {
      const auto w = load_quad<Form::OFFSET>(unit.quads + (step * QUADS + q) * QUAD_BYTES);
      unrolled<ROWS>([&](auto r) { sums[r] = dot(sums[r], w, x + (q * ROWS + r) * QUAD); });
    }
    const Vec scale = load(unit.scales + step * LANES);
    unrolled<ROWS>([&](auto r) {
      totals[r] = fma(to_vec(sums[r]), scale * broadcast(in.scales[part * ROWS + r]), totals[r]);
      if constexpr (Form::HAS_MINIMA) {
        totals[r] = fma(load(unit.minima + step * LANES), broadcast(in.shares[part * ROWS + r]), totals[r]);
      }
    });
  }
}

// One panel times a block of rows. `units` are the panel's, read already, or null.
template <class Form, int ROWS, bool IS_READ>
void multiply(const BlockLinear<Form> &job, long row, long panel, const Unit<Form> *units) {
  const QuantizedRows::Block in = job.in.block(row);
  Vec totals[ROWS];
  unrolled<ROWS>([&](auto r) { totals[r] = broadcast(0.0f); });
  const uint8_t *packed = job.panel(panel);
  for (long number = 0; number < job.units(); number++) {
    if constexpr (IS_READ) {
      add_unit<Form, ROWS>(in, number, units[number], totals);
    } else {
      Unit<Form> unit;
      Form::read(packed + number * Form::PANEL_BYTES, unit);
      add_unit<Form, ROWS>(in, number, unit, totals);
    }
  }
  unrolled<ROWS>([&](auto r) { job.product.put(row + r, panel, totals[r]); });
}

// A panel's units. Worth it once several blocks of rows would read the same.
template <class Form>
const Unit<Form> *read_panel(const BlockLinear<Form> &job, long panel) {
  static thread_local std::vector<Unit<Form>> units;
  units.resize(size_t(job.units()));
  for (long number = 0; number < job.units(); number++) {
    Form::read(job.panel(panel) + number * Form::PANEL_BYTES, units[size_t(number)]);
  }
  return units.data();
}

template <class Form>
void multiply_tile(const BlockLinear<Form> &job, const Tile &tile) {
  for (long panel = tile.panel; panel < tile.end_panel; panel++) {
    const Unit<Form> *units = tile.end_block - tile.block > 1 ? read_panel(job, panel) : nullptr;
    for (long block = tile.block; block < tile.end_block; block++) {
      with_rows<MAX_ROWS>(job.blocks.height(block), [&](auto height) {
        constexpr int ROWS = decltype(height)::value;
        if (units) return multiply<Form, ROWS, true>(job, job.blocks.begin(block), panel, units);
        multiply<Form, ROWS, false>(job, job.blocks.begin(block), panel, nullptr);
      });
    }
  }
}

template <class Form>
void multiply_all(Pool &pool, const Product &product, const uint8_t *panels) {
  static thread_local QuantizedRows quantized;
  if (product.rows == 0) return;
  const RowBlocks blocks(product.rows, MAX_ROWS);
  quantized.make_blocks<Form::OFFSET, Form::STEP>(pool, product, blocks);
  const BlockLinear<Form> job{product, panels, blocks, quantized};
  const Tiling tiling{blocks, product.num_panels(), TILE_BLOCKS, product.inputs * LANES, MIN_CHUNK, 1};
  run_tiles(pool, tiling, [&](const Tile &tile) { multiply_tile(job, tile); });
}

template <class Form>
void pack_all(uint8_t *panels, const uint8_t *rows, long begin, long count, long inputs) {
  const long units = inputs / Form::INPUTS;
  for (long i = 0; i < count; i++) {
    uint8_t *panel = panels + (begin + i) / LANES * units * Form::PANEL_BYTES;
    for (long unit = 0; unit < units; unit++) {
      Form::pack(rows + (i * units + unit) * Form::ROW_BYTES, panel + unit * Form::PANEL_BYTES, (begin + i) % LANES);
    }
  }
}

template <class Form>
void gather_all(const uint8_t *panels, const int64_t *ids, float *out, long count, long inputs) {
  const long units = inputs / Form::INPUTS;
  for (long i = 0; i < count; i++) {
    const uint8_t *panel = panels + ids[i] / LANES * units * Form::PANEL_BYTES;
    const long lane = ids[i] % LANES;
    for (long number = 0; number < units; number++) {
      Unit<Form> unit;
      Form::read(panel + number * Form::PANEL_BYTES, unit);
      for (long k = 0; k < Form::INPUTS; k++) {
        const long at = k / Form::STEP * LANES + lane;
        const float number_k = unit.scales[at] * float(int(quad_byte(unit.quads, k, lane)) - Form::OFFSET);
        *out++ = Form::HAS_MINIMA ? number_k + unit.minima[at] : number_k;
      }
    }
  }
}

// Calls function(form) for a form's number, which Python knows: see linear_blocks.py.
template <class Function>
void with_form(int number, const Function &function) {
  switch (number) {
    case 0: return function(Q8_0());
    case 1: return function(Q4_0());
    case 2: return function(Q4_1());
    case 3: return function(Q4_K());
    case 4: return function(Q6_K());
  }
}

}  // namespace
}  // namespace actorlm

using namespace actorlm;

// Bytes that 16 rows of so many inputs take in a panel.
ACTORLM_API long panel_bytes(int form, long inputs) {
  long bytes = 0;
  with_form(form, [&](auto f) { bytes = inputs / decltype(f)::INPUTS * decltype(f)::PANEL_BYTES; });
  return bytes;
}

// Panels of rows [begin, begin + count), which lie as in a file.
ACTORLM_API void pack_blocks(int form, uint8_t *panels, const uint8_t *rows, long begin, long count, long inputs) {
  with_form(form, [&](auto f) { pack_all<decltype(f)>(panels, rows, begin, count, inputs); });
}

// Sets `out` to x W^T + b, or adds that to it.
ACTORLM_API void linear_blocks(Pool *pool, int form, const uint8_t *panels, const float *bias, const float *in,
                               float *out, long rows, long inputs, long outputs, long in_stride, long out_stride,
                               int adds) {
  const Product product{out, in, bias, rows, inputs, outputs, in_stride, out_stride, adds != 0};
  with_form(form, [&](auto f) { multiply_all<decltype(f)>(*pool, product, panels); });
}

// Rows `ids` of W, as floats.
ACTORLM_API void gather_blocks(int form, const uint8_t *panels, const int64_t *ids, float *out, long count,
                               long inputs) {
  with_form(form, [&](auto f) { gather_all<decltype(f)>(panels, ids, out, count, inputs); });
}
