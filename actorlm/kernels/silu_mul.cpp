// gate / (1 + e^-gate) * up, with gate and up side by side in each row.
#include <algorithm>

#include "abi.h"
#include "exp.h"
#include "pool.h"
#include "simd.h"

namespace actorlm {
namespace {

constexpr long ROWS_A_CHUNK = 8;

void gate_row(const float *gate, const float *up, float *out, long size) {
  for (long i = 0; i < size; i += LANES) {
    const Vec g = load_part(gate, i, size);
    const Vec silu = g / (broadcast(1.0f) + exp(broadcast(0.0f) - g));
    store_part(out, silu * load_part(up, i, size), i, size);
  }
}

}  // namespace
}  // namespace actorlm

using namespace actorlm;

// `gates` is [rows, 2 size], `out` [rows, size].
ACTORLM_API void silu_mul(Pool *pool, const float *gates, float *out, long rows, long size) {
  pool->run((rows + ROWS_A_CHUNK - 1) / ROWS_A_CHUNK, [&](long chunk) {
    const long end = std::min(rows, (chunk + 1) * ROWS_A_CHUNK);
    for (long row = chunk * ROWS_A_CHUNK; row < end; row++) {
      const float *gate = gates + row * 2 * size;
      gate_row(gate, gate + size, out + row * size, size);
    }
  });
}
