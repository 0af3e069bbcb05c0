// x / sqrt(mean(x^2) + eps) * weight, vector by vector.
#include <algorithm>
#include <cmath>

#include "abi.h"
#include "pool.h"
#include "simd.h"

namespace actorlm {
namespace {

constexpr long ROWS_A_CHUNK = 16;

void normalise(const float *x, const float *weight, float eps, float *out, long size) {
  Vec squares = broadcast(0.0f);
  for (long i = 0; i < size; i += LANES) {
    const Vec part = load_part(x, i, size);
    squares = fma(part, part, squares);
  }
  const Vec scale = broadcast(1.0f / std::sqrt(sum(squares) / float(size) + eps));
  for (long i = 0; i < size; i += LANES) {
    store_part(out, load_part(x, i, size) * scale * load_part(weight, i, size), i, size);
  }
}

}  // namespace
}  // namespace actorlm

using namespace actorlm;

// A row is `heads` vectors of `size` numbers, each normalised by itself; rows begin `stride` numbers apart.
ACTORLM_API void rms_norm(Pool *pool, const float *x, const float *weight, float eps, float *out, long rows, long heads,
                          long size, long stride) {
  pool->run((rows + ROWS_A_CHUNK - 1) / ROWS_A_CHUNK, [&](long chunk) {
    const long end = std::min(rows, (chunk + 1) * ROWS_A_CHUNK);
    for (long row = chunk * ROWS_A_CHUNK; row < end; row++) {
      for (long at = row * stride; at < row * stride + heads * size; at += size) {
        normalise(x + at, weight, eps, out + at, size);
      }
    }
  });
}
