// Exponentials of sixteen floats at once, with the same results on every CPU that has fused multiply-add.
#pragma once

#include "simd.h"

namespace actorlm {

inline float first_of(Vec a) {
  float all[LANES];
  store(all, a);
  return all[0];
}

// x = n ln 2 + r, with n a whole number and |r| <= ln 2 / 2; x is bounded to [-87, 88] before.
struct Reduced {
  Vec r;
  Vec n, shifted;  // shifted has n in its low bits

  explicit Reduced(Vec x) {
    const Vec bounded = max(broadcast(-87.0f), min(broadcast(88.0f), x));
    const Vec rounder = broadcast(12582912.0f);  // 1.5 * 2**23: adding it rounds to whole numbers
    shifted = fma(bounded, broadcast(1.44269504f), rounder);
    n = shifted - rounder;
    r = fma(n, broadcast(-0.693359375f), bounded);
    r = fma(n, broadcast(2.12194440e-4f), r);
  }

  // (e**r - 1) / r, from the Taylor polynomial of e**r of degree 7.
  Vec slope() const {
    Vec p = broadcast(1.0f / 5040);
    p = fma(p, r, broadcast(1.0f / 720));
    p = fma(p, r, broadcast(1.0f / 120));
    p = fma(p, r, broadcast(1.0f / 24));
    p = fma(p, r, broadcast(1.0f / 6));
    p = fma(p, r, broadcast(0.5f));
    return fma(p, r, broadcast(1.0f));
  }
};

// e**x, within 2 units in the last place for -87 <= x <= 88; outside, that of the nearest end.
inline Vec exp(Vec x) {
  const Reduced reduced(x);
  return fma(reduced.slope(), reduced.r, broadcast(1.0f)) * shifted_to_exponent(reduced.shifted);
}

// From m = e**2x - 1, which keeps its digits where x is small: tanh x = m / (m + 2).
inline Vec tanh(Vec x) {
  const Vec bounded = max(broadcast(-16.0f), min(broadcast(16.0f), x));  // it is 1 from 9 on
  const Reduced reduced(bounded + bounded);
  const Vec power = shifted_to_exponent(reduced.shifted);
  const Vec m = fma(reduced.slope() * reduced.r, power, power - broadcast(1.0f));
  return m / (m + broadcast(2.0f));
}

}  // namespace actorlm
