// y = x W^T + b, with W [out, in] packed into panels of 16 rows: [out / 16][in][16], the last one padded with zeros.
//
// Each number of y is one chain of fused multiply-adds over the inputs in order, whatever the number of rows of x and
// wherever in it a row stands. So a row has the same bits alone and in any batch.
#include <algorithm>
#include <vector>

#include "abi.h"
#include "pool.h"
#include "simd.h"

namespace actorlm {
namespace {

#if defined(__AVX512F__)
constexpr int MAX_ROWS = 14, PANELS = 2;  // 28 sums, 2 weights and an input of 32 registers
#else
constexpr int MAX_ROWS = 6, PANELS = 1;  // with AVX2 12 sums, 2 weights and an input of 16 registers
#endif
constexpr int FETCHING_ROWS = 5;  // from which on memory has time meanwhile; with fewer the CPU foresees the reads
constexpr long TILE_ROWS = 98 / MAX_ROWS * MAX_ROWS;  // whose inputs stay in the second-level cache
constexpr long CHUNKS_A_THREAD = 4;                   // so that a thread that is held up costs a quarter of its share
constexpr long MIN_CHUNK = 32 << 10;                  // multiply-adds that are worth handing to a thread

struct Linear {
  float *out;         // [rows, outputs], rows at a distance of out_stride
  const float *in;    // [rows, inputs], rows at a distance of in_stride
  const float *bias;  // [outputs] or null
  long rows, inputs, outputs, in_stride, out_stride;
  bool adds;  // to what `out` holds, instead of replacing it
};

// The weights that come next, which are brought near while others are multiplied.
struct Next {
  const char *first;  // byte
  long apart;         // bytes from a panel to the one beside it
  long step;          // bytes of each panel that are fetched for each input
};

void put(const Linear &job, long row, long column, Vec sum) {
  float *to = job.out + row * job.out_stride + column;
  const long size = job.outputs - column;
  if (job.bias) sum = sum + load_part(job.bias + column, 0, size);
  if (job.adds) sum = load_part(to, 0, size) + sum;
  store_part(to, sum, 0, size);
}

template <class Weight, int ROWS, int WIDTH>
void multiply(const Linear &job, const Weight *weights, long row, long panel, const Next &next) {
  const long panel_size = job.inputs * LANES;
  const float *in = job.in + row * job.in_stride;
  Vec sums[ROWS][WIDTH];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 4
    for (int p = 0; p < WIDTH; p++) {
      sums[r][p] = broadcast(0.0f);
      fetch_to_write(job.out + (row + r) * job.out_stride + (panel + p) * LANES);
    }
  }
  for (long k = 0; k < job.inputs; k++) {
    Vec w[WIDTH];
#pragma GCC unroll 4
    for (int p = 0; p < WIDTH; p++) {
      w[p] = load(weights + p * panel_size + k * LANES);
      if constexpr (ROWS >= FETCHING_ROWS) fetch(next.first + p * next.apart + k * next.step);
    }
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
      const Vec x = broadcast(in[r * job.in_stride + k]);
#pragma GCC unroll 4
      for (int p = 0; p < WIDTH; p++) sums[r][p] = fma(x, w[p], sums[r][p]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 4
    for (int p = 0; p < WIDTH; p++) put(job, row + r, (panel + p) * LANES, sums[r][p]);
  }
}

template <class Weight, int WIDTH, int ROWS = 1>
void multiply_rows(const Linear &job, const Weight *weights, long row, long panel, long rows, const Next &next) {
  if constexpr (ROWS <= MAX_ROWS) {
    if (rows == ROWS) return multiply<Weight, ROWS, WIDTH>(job, weights, row, panel, next);
    multiply_rows<Weight, WIDTH, ROWS + 1>(job, weights, row, panel, rows, next);
  }
}

// One panel, or PANELS of them if `wide`, times rows in blocks of nearly equal height. Each block fetches its share of
// the panels at `next`, which are panel_bytes apart.
template <class Weight>
void multiply_blocks(const Linear &job, const Weight *weights, long row, long rows, long panel, bool wide,
                     const void *next, long panel_bytes) {
  const long blocks = (rows + MAX_ROWS - 1) / MAX_ROWS, step = panel_bytes / job.inputs / blocks;
  for (long block = 0; block < blocks; block++) {
    const long height = (rows + blocks - 1 - block) / blocks;
    const Next share{(const char *)next + block * step * job.inputs, panel_bytes, step};
    if (wide) {
      multiply_rows<Weight, PANELS>(job, weights, row, panel, height, share);
    } else {
      multiply_rows<Weight, 1>(job, weights, row, panel, height, share);
    }
    row += height;
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
void multiply_tile(const Linear &job, const Weight *panels, long row, long rows, long panel, long end) {
  const long panel_size = job.inputs * LANES, panel_bytes = panel_size * long(sizeof(Weight));
  while (panel < end) {
    const bool wide = PANELS > 1 && panel + PANELS <= end;
    const long count = wide ? PANELS : 1, after = panel + 2 * count <= end ? panel + count : panel;
    const Weight *weights = panels + panel * panel_size, *next = panels + after * panel_size;
    if (sizeof(Weight) < sizeof(float) && rows > MAX_ROWS) {
      const float *floats = widened(weights, count * panel_size);
      multiply_blocks(job, floats, row, rows, panel, wide, next, panel_bytes);
    } else {
      multiply_blocks(job, weights, row, rows, panel, wide, next, panel_bytes);
    }
    panel += count;
  }
}

template <class Weight>
void multiply_all(Pool &pool, const Linear &job, const Weight *panels) {
  if (job.rows == 0) return;
  const long num_panels = (job.outputs + LANES - 1) / LANES;
  const long tiles = (job.rows + TILE_ROWS - 1) / TILE_ROWS, height = (job.rows + tiles - 1) / tiles;
  const long panel_work = height * job.inputs * LANES;
  const long wanted = (num_panels * tiles + pool.threads() * CHUNKS_A_THREAD - 1) / (pool.threads() * CHUNKS_A_THREAD);
  const long worth = (MIN_CHUNK + panel_work - 1) / panel_work;
  const long width = (std::max(wanted, worth) + PANELS - 1) / PANELS * PANELS;
  const long columns = (num_panels + width - 1) / width;
  pool.run(tiles * columns, [&](long chunk) {
    const long row = chunk / columns * height, panel = chunk % columns * width;
    multiply_tile(job, panels, row, std::min(height, job.rows - row), panel, std::min(panel + width, num_panels));
  });
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
  const Linear job{out, in, bias, rows, inputs, outputs, in_stride, out_stride, adds != 0};
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
