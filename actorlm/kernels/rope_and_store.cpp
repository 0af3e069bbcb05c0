// Rotates the queries and keys of a step by their positions, and writes keys and values to the paged cache.
#include <algorithm>

#include "abi.h"
#include "kv_cache.h"
#include "pool.h"
#include "simd.h"

namespace actorlm {
namespace {

constexpr long TOKENS_A_CHUNK = 16;

struct Rope {
  float *heads;           // [tokens, q_heads + 2 kv_heads, size]: queries, keys, values
  const float *rotation;  // [tokens, size / 2, 2]: cosine and sine of each angle
  const int64_t *places;  // [tokens, 2 kv_heads]: which vector of the cache each key and each value becomes
  long tokens, q_heads, kv_heads, size;
};

// Numbers 2 i and 2 i + 1 are the real and the imaginary part of one complex number, and are multiplied by another.
void rotate(float *head, const float *rotation, long size) {
  for (long i = 0; i < size; i += 2) {
    const float real = head[i], imaginary = head[i + 1], cosine = rotation[i], sine = rotation[i + 1];
    head[i] = real * cosine - imaginary * sine;
    head[i + 1] = real * sine + imaginary * cosine;
  }
}

void store_vector(const float *from, int8_t *to, long step, float *scale, long size) {
  quantise(from, to, step, scale, size);
}

template <class Cached>
void store_vector(const float *from, Cached *to, long step, float *, long size) {
  for (long i = 0; i < size; i++) from_float(from[i], to + i * step);
}

template <class Cached>
void store_token(const Rope &job, Cached *cache, float *scales, long token) {
  float *heads = job.heads + token * (job.q_heads + 2 * job.kv_heads) * job.size;
  for (long head = 0; head < job.q_heads + job.kv_heads; head++) {
    rotate(heads + head * job.size, job.rotation + token * job.size, job.size);
  }
  const float *from = heads + job.q_heads * job.size;
  for (long head = 0; head < 2 * job.kv_heads; head++, from += job.size) {
    const int64_t place = job.places[token * 2 * job.kv_heads + head];
    if (head < job.kv_heads) {
      const int64_t slot = place % LANES;
      store_vector(from, cache + (place - slot) * job.size + slot, LANES, scales + place, job.size);
    } else {
      store_vector(from, cache + place * job.size, 1, scales + place, job.size);
    }
  }
}

template <class Cached>
void store_all(Pool &pool, const Rope &job, Cached *cache, float *scales) {
  pool.run((job.tokens + TOKENS_A_CHUNK - 1) / TOKENS_A_CHUNK, [&](long chunk) {
    const long end = std::min(job.tokens, (chunk + 1) * TOKENS_A_CHUNK);
    for (long token = chunk * TOKENS_A_CHUNK; token < end; token++) store_token(job, cache, scales, token);
  });
}

}  // namespace
}  // namespace actorlm

using namespace actorlm;

// `scales` has one number for each vector of a cache of int8; others have none.
ACTORLM_API void rope_and_store(Pool *pool, CacheType type, void *cache, float *scales, float *heads,
                                const float *rotation, const int64_t *places, long tokens, long q_heads, long kv_heads,
                                long size) {
  const Rope job{heads, rotation, places, tokens, q_heads, kv_heads, size};
  with_numbers(type, cache, [&](auto *numbers) { store_all(*pool, job, numbers, scales); });
}
