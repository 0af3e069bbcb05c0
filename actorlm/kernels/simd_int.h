// Sixteen 32-bit sums of products of bytes, exact on every CPU: weights without sign times inputs with sign, four of
// each at a time.
//
// A weight w is stored as w + OFFSET, from 0 on. Where sums are made of the stored numbers, they start at -OFFSET times
// the sum of the inputs; AVX2 would saturate with an OFFSET of 128, and takes the weights with their sign.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd.h"

namespace actorlm {

constexpr int QUAD = 4;                   // inputs that are multiplied at once
constexpr int QUAD_BYTES = QUAD * LANES;  // their weights for 16 outputs, output by output

inline int32_t quad_of(const int8_t *inputs) {
  int32_t quad;
  std::memcpy(&quad, inputs, QUAD);
  return quad;
}

#if defined(__AVX512VNNI__)

constexpr bool TAKES_SIGNS = false;

struct Ints {
  __m512i v;
};

template <int OFFSET>
struct Quad {
  __m512i v;
};

inline Ints splat(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline Vec to_vec(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }

template <int OFFSET>
inline Quad<OFFSET> load_quad(const uint8_t *p) {
  return {_mm512_loadu_si512(p)};
}

template <int OFFSET>
inline Ints dot(Ints sums, Quad<OFFSET> weights, const int8_t *inputs) {
  // Not the intrinsic, of whose sum gcc 12 makes a copy for each product.
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sums.v) : "v"(weights.v), "v"(_mm512_set1_epi32(quad_of(inputs))));
  return sums;
}

#elif defined(__AVX2__)

constexpr bool TAKES_SIGNS = true;

struct Ints {
  __m256i low, high;
};

template <int OFFSET>
struct Quad {
  __m256i low, high;
};

template <>
struct Quad<128> {
  __m256i low, high, low_size, high_size;  // with sign, and without
};

inline Ints splat(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline Vec to_vec(Ints a) {
  const __m256 low = _mm256_cvtepi32_ps(a.low), high = _mm256_cvtepi32_ps(a.high);
#if defined(__AVX512F__)
  return {_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1)};
#else
  return {low, high};
#endif
}

template <int OFFSET>
inline Quad<OFFSET> load_quad(const uint8_t *p) {
  const __m256i low = _mm256_loadu_si256((const __m256i *)p), high = _mm256_loadu_si256((const __m256i *)p + 1);
  if constexpr (OFFSET == 128) {
    const __m256i flip = _mm256_set1_epi8(char(0x80));
    const __m256i a = _mm256_xor_si256(low, flip), b = _mm256_xor_si256(high, flip);
    return {a, b, _mm256_abs_epi8(a), _mm256_abs_epi8(b)};
  } else {
    return {low, high};
  }
}

inline __m256i add_products(__m256i sums, __m256i sizes, __m256i signed_bytes) {
  const __m256i pairs = _mm256_maddubs_epi16(sizes, signed_bytes);
  return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

template <int OFFSET>
inline Ints dot(Ints sums, Quad<OFFSET> weights, const int8_t *inputs) {
  const __m256i x = _mm256_set1_epi32(quad_of(inputs));
  if constexpr (OFFSET == 128) {  // |w| * (x with the sign of w): at most 2 * 128 * 127 in a pair
    return {add_products(sums.low, weights.low_size, _mm256_sign_epi8(x, weights.low)),
            add_products(sums.high, weights.high_size, _mm256_sign_epi8(x, weights.high))};
  } else {
    return {add_products(sums.low, weights.low, x), add_products(sums.high, weights.high, x)};
  }
}

#else

constexpr bool TAKES_SIGNS = false;

struct Ints {
  int32_t v[LANES];
};

template <int OFFSET>
struct Quad {
  uint8_t v[QUAD_BYTES];
};

inline Ints splat(int32_t x) {
  Ints result;
  for (int i = 0; i < LANES; i++) result.v[i] = x;
  return result;
}
inline Vec to_vec(Ints a) {
  return each([&](int i) { return float(a.v[i]); });
}

template <int OFFSET>
inline Quad<OFFSET> load_quad(const uint8_t *p) {
  Quad<OFFSET> quad;
  std::memcpy(quad.v, p, QUAD_BYTES);
  return quad;
}

template <int OFFSET>
inline Ints dot(Ints sums, const Quad<OFFSET> &weights, const int8_t *inputs) {
  for (int i = 0; i < LANES; i++) {
    for (int j = 0; j < QUAD; j++) sums.v[i] += int32_t(weights.v[i * QUAD + j]) * inputs[j];
  }
  return sums;
}

#endif

// Sixteen bytes as floats.
#if defined(__AVX512F__)
inline Vec load_whole(const uint8_t *p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)))};
}
inline Vec load_whole(const int8_t *p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)))};
}
#else
template <class Byte>
inline Vec load_whole(const Byte *p) {
  float numbers[LANES];
  for (int i = 0; i < LANES; i++) numbers[i] = float(p[i]);
  return load(numbers);
}
#endif

// What sums of OFFSET-shifted weights start with, for inputs that add up to `sum`.
template <int OFFSET>
constexpr int32_t start_of(int32_t sum) {
  return OFFSET == 128 && TAKES_SIGNS ? 0 : -OFFSET * sum;
}

// Sixteen numbers from -127 to 127, rounded to whole ones, ties to even, as bytes.
inline void store_rounded(int8_t *to, Vec numbers) {
  const Vec shifted = numbers + broadcast(12582912.0f);  // 1.5 * 2**23: the low bits are the number
#if defined(__AVX512F__)
  _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8(_mm512_castps_si512(shifted.v)));
#else
  float all[LANES];
  store(all, shifted);
  for (int i = 0; i < LANES; i++) to[i] = int8_t(bits_of(all[i]));
#endif
}

}  // namespace actorlm
