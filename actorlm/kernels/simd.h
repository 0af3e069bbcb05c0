// Sixteen floats at once, with the same results on every CPU that has fused multiply-add.
//
// A file is compiled once for each instruction set; AVX-512 holds a Vec in one register, AVX2 in two, and the portable
// version leaves it to the compiler. Sums of lanes are taken in one fixed order. Compile with -ffp-contract=off: what
// is fused is written as `fma`.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace actorlm {

constexpr int LANES = 16;

constexpr long LINE = 64;  // bytes of a cache line

// Asks for the line with this byte to be brought into the second-level cache. Any address will do. Always inline, also
// what calls it: gcc takes a function that does nothing else for one without an effect, and leaves the call out.
[[gnu::always_inline]] inline void fetch(const void *address) { __builtin_prefetch(address, 0, 2); }
[[gnu::always_inline]] inline void fetch_to_write(const void *address) { __builtin_prefetch(address, 1, 2); }

struct Half {
  uint16_t bits;
};

struct BFloat16 {
  uint16_t bits;
};

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

inline float to_float(float x) { return x; }

inline float to_float(int8_t x) { return x; }

inline float to_float(BFloat16 x) { return float_of(uint32_t(x.bits) << 16); }

inline float to_float(Half x) {
  const uint32_t sign = uint32_t(x.bits & 0x8000) << 16, rest = uint32_t(x.bits & 0x7fff) << 13;
  if (rest >= 0x0f800000) return float_of(sign | (rest + 0x70000000));     // infinite, or not a number
  return float_of(sign | bits_of(float_of(rest) * float_of(0x77800000)));  // times 2**112: right for subnormals, too
}

inline void from_float(float x, float *to) { *to = x; }

inline void from_float(float x, BFloat16 *to) {
  const uint32_t bits = bits_of(x);
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  to->bits = uint16_t(is_nan ? (bits >> 16) | 0x40 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline void from_float(float x, Half *to) {  // to the nearest, ties to even
  const uint32_t bits = bits_of(x), sign = (bits >> 16) & 0x8000, size = bits & 0x7fffffff;
  uint32_t half;
  if (size > 0x7f800000) {
    half = 0x7e00 | ((size >> 13) & 0x3ff);
  } else if (size >= 0x47800000) {
    half = 0x7c00;
  } else if (size < 0x38800000) {  // subnormal: adding 0.5 rounds to multiples of 2**-24
    half = bits_of(float_of(size) + 0.5f) - bits_of(0.5f);
  } else {
    half = (size - 0x38000000 + 0xfff + ((size >> 13) & 1)) >> 13;
  }
  to->bits = uint16_t(sign | half);
}

#if defined(__AVX512F__)

struct Vec {
  __m512 v;
};

inline Vec load(const float *p) { return {_mm512_loadu_ps(p)}; }
inline Vec load(const Half *p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p))}; }
inline Vec load(const BFloat16 *p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline Vec load(const int8_t *p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)))};
}
inline void store(float *p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline Vec broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }  // b where either is not a number
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }  // b where either is not a number
inline Vec shifted_to_exponent(Vec a) {                             // 2**n, where n are the low bits of a
  const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(a.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(n, _mm512_set1_epi32(0x3f800000)))};
}

inline float sum(Vec a) {
  const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1));
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

#elif defined(__AVX2__)

struct Vec {
  __m256 low, high;
};

inline Vec load(const float *p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline Vec load(const Half *p) {
  const auto *q = (const __m128i *)p;
  return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
inline __m256 widened(const __m128i *p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
inline Vec load(const BFloat16 *p) { return {widened((const __m128i *)p), widened((const __m128i *)p + 1)}; }
inline Vec load(const int8_t *p) {
  const __m128i all = _mm_loadu_si128((const __m128i *)p);
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(all)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(all, 8)))};
}
inline void store(float *p, Vec a) {
  _mm256_storeu_ps(p, a.low);
  _mm256_storeu_ps(p + 8, a.high);
}
inline Vec broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline __m256 exponent(__m256 a) {
  const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(a), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(n, _mm256_set1_epi32(0x3f800000)));
}
inline Vec shifted_to_exponent(Vec a) { return {exponent(a.low), exponent(a.high)}; }

inline float sum(Vec a) {
  const __m256 eight = _mm256_add_ps(a.low, a.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

#else

struct Vec {
  float v[LANES];
};

template <class Function>
inline Vec each(Function function) {
  Vec result;
  for (int i = 0; i < LANES; i++) result.v[i] = function(i);
  return result;
}

template <class T>
inline Vec load(const T *p) {
  return each([&](int i) { return to_float(p[i]); });
}
inline void store(float *p, Vec a) { std::memcpy(p, a.v, sizeof a.v); }
inline Vec broadcast(float x) {
  return each([&](int) { return x; });
}
inline Vec operator+(Vec a, Vec b) {
  return each([&](int i) { return a.v[i] + b.v[i]; });
}
inline Vec operator-(Vec a, Vec b) {
  return each([&](int i) { return a.v[i] - b.v[i]; });
}
inline Vec operator*(Vec a, Vec b) {
  return each([&](int i) { return a.v[i] * b.v[i]; });
}
inline Vec operator/(Vec a, Vec b) {
  return each([&](int i) { return a.v[i] / b.v[i]; });
}
inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__FP_FAST_FMAF)
  return each([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
#else
  return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
#endif
}
inline Vec max(Vec a, Vec b) {
  return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec min(Vec a, Vec b) {
  return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec shifted_to_exponent(Vec a) {
  return each([&](int i) { return float_of((bits_of(a.v[i]) << 23) + 0x3f800000); });
}

inline float sum(Vec a) {
  for (int width = LANES / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; i++) a.v[i] += a.v[i + width];
  }
  return a.v[0];
}

#endif

// The first `count` of the numbers, and zeros.
template <class T>
inline Vec load_first(const T *p, long count) {
  T padded[LANES] = {};
  std::memcpy(padded, p, size_t(count) * sizeof(T));
  return load(padded);
}

inline void store_first(float *p, Vec a, long count) {
  float all[LANES];
  store(all, a);
  std::memcpy(p, all, size_t(count) * sizeof(float));
}

// The Vec at `begin` of `size` numbers, padded with zeros.
template <class T>
inline Vec load_part(const T *p, long begin, long size) {
  return size - begin >= LANES ? load(p + begin) : load_first(p + begin, size - begin);
}

inline void store_part(float *p, Vec a, long begin, long size) {
  if (size - begin >= LANES) {
    store(p + begin, a);
  } else {
    store_first(p + begin, a, size - begin);
  }
}

inline float max_of(Vec a) {
  float all[LANES];
  store(all, a);
  float result = all[0];
  for (float x : all) result = x > result || x != x ? x : result;
  return result;
}

}  // namespace actorlm
