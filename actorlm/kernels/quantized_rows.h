// Rows of floats as bytes from -127 to 127 times a scale, for whole rows or for each 32 numbers of a row.
//
// The scale is the largest size divided by 127; a number becomes the nearest whole multiple, ties to even. Rows of very
// small numbers are zeros. A row with a number that is infinite or none gets a scale that is none.
//
// The rows of a block (tiles.h) lie together: four inputs of each row, then the next four; scales likewise.
#pragma once

#include <vector>

#include "pool.h"
#include "simd.h"
#include "simd_int.h"
#include "tiles.h"

namespace actorlm {

constexpr long X_BLOCK = 32;

struct Scale {
  float scale, inverse;
};

inline Scale scale_of(const float *x, long count) {
  const Vec zero = broadcast(0.0f);
  Vec most = zero, broken = zero;  // `broken` stays zero, or becomes not a number
  for (long i = 0; i < count; i += LANES) {
    const Vec part = load_part(x, i, count);
    most = max(most, max(part, zero - part));
    broken = fma(part, zero, broken);
  }
  const float top = max_of(most);
  const bool counts = top >= 1e-30f;
  return {(counts ? top / 127.0f : 0.0f) + sum(broken), counts ? 127.0f / top : 0.0f};
}

// Writes `count` bytes, up to a multiple of 16 with zeros, and gives their sum.
inline int32_t quantize(const float *x, long count, float inverse, int8_t *to) {
  for (long i = 0; i < count; i += LANES) store_rounded(to + i, load_part(x, i, count) * broadcast(inverse));
  int32_t total = 0;
  for (long i = 0; i < count; i++) total += to[i];
  return total;
}

// All rows of a product's inputs.
class QuantizedRows {
 public:
  // Of a block's rows: their bytes; a scale, and what scale * (sum of bytes) is, for each part of a row; with what sums
  // over each step of inputs start.
  struct Block {
    const int8_t *numbers;
    const float *scales, *shares;
    const int32_t *starts;
  };

  Block block(long begin) const {
    return {numbers_.data() + begin * quads_ * QUAD, scales_.data() + begin * parts_, shares_.data() + begin * parts_,
            starts_.data() + begin * steps_};
  }

  // One scale a row, and one start.
  template <int OFFSET>
  void make_whole(Pool &pool, const Product &product, const RowBlocks &blocks) {
    resize(product, 1, 1);
    for_rows(pool, product.rows, product.inputs, [&](long row) {
      const Place place(blocks, row);
      const float *x = product.in + row * product.in_stride;
      int8_t *bytes = scratch(product.inputs);
      const Scale scale = scale_of(x, product.inputs);
      scales_[size_t(row)] = scale.scale;
      starts_[size_t(row)] = start_of<OFFSET>(quantize(x, product.inputs, scale.inverse, bytes));
      spread(bytes, 0, quads_, place);
    });
  }

  // A scale for each 32 inputs, of which there is a multiple, and a start for each STEP inputs.
  template <int OFFSET, int STEP>
  void make_blocks(Pool &pool, const Product &product, const RowBlocks &blocks) {
    resize(product, product.inputs / X_BLOCK, product.inputs / STEP);
    for_rows(pool, product.rows, product.inputs, [&](long row) {
      const Place place(blocks, row);
      for (long part = 0; part < parts_; part++) {
        make_part<OFFSET, STEP>(product.in + row * product.in_stride + part * X_BLOCK, part, place);
      }
    });
  }

 private:
  // Where a row's numbers are among those of its block.
  struct Place {
    long begin, height, row;

    Place(const RowBlocks &blocks, long number)
        : begin(blocks.begin(blocks.of(number))), height(blocks.height(blocks.of(number))), row(number - begin) {}

    size_t operator()(long number, long each) const { return size_t(begin * each + number * height + row); }
  };

  template <int OFFSET, int STEP>
  void make_part(const float *x, long part, const Place &place) {
    alignas(64) int8_t bytes[X_BLOCK];
    const Scale scale = scale_of(x, X_BLOCK);
    int32_t total = 0;
    for (long i = 0; i < X_BLOCK; i += STEP) {
      const int32_t sum = quantize(x + i, STEP, scale.inverse, bytes + i);
      starts_[place((part * X_BLOCK + i) / STEP, steps_)] = start_of<OFFSET>(sum);
      total += sum;
    }
    scales_[place(part, parts_)] = scale.scale;
    shares_[place(part, parts_)] = scale.scale * float(total);
    spread(bytes, part * (X_BLOCK / QUAD), X_BLOCK / QUAD, place);
  }

  void spread(const int8_t *bytes, long first, long count, const Place &place) {
    for (long q = 0; q < count; q++) {
      std::memcpy(numbers_.data() + place(first + q, quads_) * QUAD, bytes + q * QUAD, QUAD);
    }
  }

  static int8_t *scratch(long inputs) {
    static thread_local std::vector<int8_t> bytes;
    grow(bytes, inputs + LANES);
    return bytes.data();
  }

  void resize(const Product &product, long parts, long steps) {
    quads_ = (product.inputs + QUAD - 1) / QUAD, parts_ = parts, steps_ = steps;
    grow(numbers_, product.rows * quads_ * QUAD), grow(starts_, product.rows * steps);
    grow(scales_, product.rows * parts), grow(shares_, product.rows * parts);
  }

  template <class T>
  static void grow(std::vector<T> &all, long size) {
    if (long(all.size()) < size) all.resize(size_t(size));
  }

  std::vector<int8_t> numbers_;
  std::vector<float> scales_, shares_;
  std::vector<int32_t> starts_;
  long quads_ = 0, parts_ = 0, steps_ = 0;
};

}  // namespace actorlm
