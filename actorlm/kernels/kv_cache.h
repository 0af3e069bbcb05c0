// What the KV cache holds: floats, or int8 numbers with one scale a vector.
//
// A block has 16 vectors of one key-value head. Values lie one after the other, keys feature by feature: a product of a
// query and 16 keys then reads what lies together.
//
// A vector (of one token and one key-value head, keys and values apart) that is stored as int8 is its largest absolute
// value / 127, the scale, times whole numbers from -127 to 127.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "simd.h"

namespace actorlm {

// By the number that Python passes.
enum class CacheType : int { FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2, INT8 = 3 };

template <class Cached>
constexpr bool HAS_SCALES = std::is_same_v<std::remove_const_t<Cached>, int8_t>;

// Calls function(numbers) with the address of the cache's numbers in their type.
template <class Void, class Function>
void with_numbers(CacheType type, Void *cache, const Function &function) {
  const auto call = [&](auto number) {
    using Cached = std::conditional_t<std::is_const_v<Void>, const decltype(number), decltype(number)>;
    function((Cached *)cache);
  };
  switch (type) {
    case CacheType::FLOAT32: return call(float());
    case CacheType::FLOAT16: return call(Half());
    case CacheType::BFLOAT16: return call(BFloat16());
    case CacheType::INT8: return call(int8_t());
  }
}

// The largest absolute value; not a number if one is not. By bits, whose order is that of absolute values.
inline float largest(const float *numbers, long size) {
  uint32_t highest = 0;
  for (long i = 0; i < size; i++) highest = std::max(highest, bits_of(numbers[i]) & 0x7fffffff);
  return float_of(highest);
}

// To the nearest whole number from -127 to 127, ties to even; 0 for what is not a number.
inline int8_t whole(float x) {
  const float rounder = 12582912.0f;  // 1.5 * 2**23: adding it rounds to whole numbers
  const float bounded = x > 127.0f ? 127.0f : x < -127.0f ? -127.0f : x;
  return int8_t(x == x ? int32_t((bounded + rounder) - rounder) : 0);
}

// Numbers of a vector whose places are `step` apart.
inline void quantise(const float *from, int8_t *to, long step, float *scale, long size) {
  const float unit = largest(from, size) / 127.0f;
  for (long i = 0; i < size; i++) to[i * step] = whole(from[i] / unit);
  *scale = unit;
}

}  // namespace actorlm
