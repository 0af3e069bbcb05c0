// Weights in the blocks of GGUF files, kept as small as they are there, in panels of 16 outputs.
//
// A weight is scale * (q - OFFSET) + minimum, with a whole number q from 0 on, and a scale and perhaps a minimum for
// each STEP inputs of an output. A form says how INPUTS weights of one row lie in a file (ROW_BYTES), how those of 16
// rows lie in a panel (PANEL_BYTES), and how these are read. In a panel the q of four inputs and 16 outputs follow each
// other, output by output; forms of four bits have the first half of a run in the low bits and the second half in the
// high ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "simd.h"
#include "simd_int.h"

namespace actorlm {

// A form's weights of 16 outputs and INPUTS inputs, ready to be multiplied.
template <class Form>
struct Unit {
  alignas(64) uint8_t quads[Form::INPUTS * LANES];
  alignas(64) float scales[Form::INPUTS / Form::STEP * LANES];
  alignas(64) float minima[Form::HAS_MINIMA ? Form::INPUTS / Form::STEP * LANES : 1];
};

inline uint8_t &quad_byte(uint8_t *quads, long input, long lane) {
  return quads[input / QUAD * QUAD_BYTES + lane * QUAD + input % QUAD];
}

inline float half_at(const uint8_t *p) {
  Half half;
  std::memcpy(&half, p, 2);
  return to_float(half);
}

// The low four bits of `count` bytes, then the high ones.
inline void split_nibbles(const uint8_t *__restrict from, uint8_t *__restrict low, uint8_t *__restrict high,
                          long count) {
  for (long i = 0; i < count; i++) low[i] = from[i] & 15, high[i] = from[i] >> 4;
}

// Scales of 16 outputs as halves.
inline void widen(const uint8_t *halves, float *to) { store(to, load((const Half *)halves)); }

// ---- 32 inputs, one scale ----

struct Q8_0 {
  static constexpr int OFFSET = 128, INPUTS = 32, STEP = 32, ROW_BYTES = 34, PANEL_BYTES = ROW_BYTES * LANES;
  static constexpr bool HAS_MINIMA = false;

  static void pack(const uint8_t *row, uint8_t *panel, long lane) {
    std::memcpy(panel + lane * 2, row, 2);
    for (long k = 0; k < INPUTS; k++) quad_byte(panel + 2 * LANES, k, lane) = row[2 + k] ^ 0x80;
  }

  static void read(const uint8_t *panel, Unit<Q8_0> &unit) {
    widen(panel, unit.scales);
    std::memcpy(unit.quads, panel + 2 * LANES, sizeof unit.quads);
  }
};

// Nibbles k and k + 16 of a file's block share a byte; a panel has them so, too.
inline void pack_nibbles(const uint8_t *row, uint8_t *panel, long lane) {
  for (long k = 0; k < 16; k++) quad_byte(panel, k, lane) = row[k];
}

struct Q4_0 {
  static constexpr int OFFSET = 8, INPUTS = 32, STEP = 32, ROW_BYTES = 18, PANEL_BYTES = ROW_BYTES * LANES;
  static constexpr bool HAS_MINIMA = false;

  static void pack(const uint8_t *row, uint8_t *panel, long lane) {
    std::memcpy(panel + lane * 2, row, 2);
    pack_nibbles(row + 2, panel + 2 * LANES, lane);
  }

  static void read(const uint8_t *panel, Unit<Q4_0> &unit) {
    widen(panel, unit.scales);
    split_nibbles(panel + 2 * LANES, unit.quads, unit.quads + 16 * LANES, 16 * LANES);
  }
};

struct Q4_1 {
  static constexpr int OFFSET = 0, INPUTS = 32, STEP = 32, ROW_BYTES = 20, PANEL_BYTES = ROW_BYTES * LANES;
  static constexpr bool HAS_MINIMA = true;

  static void pack(const uint8_t *row, uint8_t *panel, long lane) {
    std::memcpy(panel + lane * 2, row, 2);
    std::memcpy(panel + 2 * LANES + lane * 2, row + 2, 2);
    pack_nibbles(row + 4, panel + 4 * LANES, lane);
  }

  static void read(const uint8_t *panel, Unit<Q4_1> &unit) {
    widen(panel, unit.scales);
    widen(panel + 2 * LANES, unit.minima);
    split_nibbles(panel + 4 * LANES, unit.quads, unit.quads + 16 * LANES, 16 * LANES);
  }
};

// ---- 256 inputs, with scales of scales ----

// Eight scales and eight minima of six bits for 32 inputs each. In a panel they are bytes: [8][16] each.
struct Q4_K {
  static constexpr int OFFSET = 0, INPUTS = 256, STEP = 32, ROW_BYTES = 144, PANEL_BYTES = 148 * LANES;
  static constexpr bool HAS_MINIMA = true;
  static constexpr long SCALES = 4 * LANES, MINIMA = SCALES + 8 * LANES, QUADS = MINIMA + 8 * LANES;

  static void pack(const uint8_t *row, uint8_t *panel, long lane) {
    std::memcpy(panel + lane * 2, row, 2);
    std::memcpy(panel + 2 * LANES + lane * 2, row + 2, 2);
    const uint8_t *bits = row + 4;
    for (int i = 0; i < 8; i++) {
      const bool low = i < 4;
      panel[SCALES + i * LANES + lane] = low ? bits[i] & 63 : (bits[i + 4] & 15) | (bits[i - 4] >> 6 << 4);
      panel[MINIMA + i * LANES + lane] = low ? bits[i + 4] & 63 : (bits[i + 4] >> 4) | (bits[i] >> 6 << 4);
    }
    for (long run = 0; run < 4; run++) {  // inputs k and k + 32 of 64 share a byte
      uint8_t *to = panel + QUADS + run * 32 * LANES;
      for (long k = 0; k < 32; k++) quad_byte(to, k, lane) = row[16 + run * 32 + k];
    }
  }

  static void read(const uint8_t *panel, Unit<Q4_K> &unit) {
    const Vec scale = load((const Half *)panel), minimum = load((const Half *)(panel + 2 * LANES));
    const Vec negative = broadcast(0.0f) - minimum;
    for (long i = 0; i < 8; i++) {
      store(unit.scales + i * LANES, scale * load_whole(panel + SCALES + i * LANES));
      store(unit.minima + i * LANES, negative * load_whole(panel + MINIMA + i * LANES));
    }
    for (long run = 0; run < 4; run++) {
      uint8_t *to = unit.quads + run * 64 * LANES;
      split_nibbles(panel + QUADS + run * 32 * LANES, to, to + 32 * LANES, 32 * LANES);
    }
  }
};

// A scale of eight bits, with sign, for 16 inputs each. Four low and two high bits of each weight lie apart.
struct Q6_K {
  static constexpr int OFFSET = 32, INPUTS = 256, STEP = 16, ROW_BYTES = 210, PANEL_BYTES = ROW_BYTES * LANES;
  static constexpr bool HAS_MINIMA = false;
  static constexpr long SCALES = 2 * LANES, LOW = SCALES + 16 * LANES, HIGH = LOW + 128 * LANES;

  // In each half of 128 inputs: low bits of k and k + 64 share a byte, high bits of k, k + 32, k + 64 and k + 96.
  static void pack(const uint8_t *row, uint8_t *panel, long lane) {
    std::memcpy(panel + lane * 2, row + 208, 2);
    for (int i = 0; i < 16; i++) panel[SCALES + i * LANES + lane] = row[192 + i];
    for (long half = 0; half < 2; half++) {
      for (long k = 0; k < 64; k++) quad_byte(panel + LOW + half * 64 * LANES, k, lane) = row[half * 64 + k];
      for (long k = 0; k < 32; k++) quad_byte(panel + HIGH + half * 32 * LANES, k, lane) = row[128 + half * 32 + k];
    }
  }

  static void read(const uint8_t *panel, Unit<Q6_K> &unit) {
    const Vec scale = load((const Half *)panel);
    for (long i = 0; i < 16; i++) {
      store(unit.scales + i * LANES, scale * load_whole((const int8_t *)panel + SCALES + i * LANES));
    }
    for (long half = 0; half < 2; half++) {
      const uint8_t *low = panel + LOW + half * 64 * LANES, *high = panel + HIGH + half * 32 * LANES;
      uint8_t *__restrict to = unit.quads + half * 128 * LANES;
      for (long i = 0; i < 32 * LANES; i++) {
        to[i] = (low[i] & 15) | ((high[i] & 3) << 4);
        to[32 * LANES + i] = (low[32 * LANES + i] & 15) | ((high[i] >> 2 & 3) << 4);
        to[64 * LANES + i] = (low[i] >> 4) | ((high[i] >> 4 & 3) << 4);
        to[96 * LANES + i] = (low[32 * LANES + i] >> 4) | (high[i] >> 6 << 4);
      }
    }
  }
};

}  // namespace actorlm
