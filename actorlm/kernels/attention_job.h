// One group of queries and one key-value head: what a thread works on, and where it keeps what it makes.
#pragma once

#include <type_traits>
#include <vector>

#include "attention_work.h"
#include "kv_cache.h"

namespace actorlm {
namespace {  // for one file, so that the compiler may inline all of it

#if defined(__AVX512F__)
constexpr int MAX_QUERIES = 8;
#else
constexpr int MAX_QUERIES = 6;
#endif

// Floats in whole cache lines: loads across two of them cost twice.
class Lines {
 public:
  // Makes room for `count` floats, a multiple of LANES, which may be anything.
  void resize(long count) { lines_.resize(size_t(count / LANES)); }
  void zero(long count) { lines_.assign(size_t(count / LANES), Line{}); }
  float *data() { return (float *)lines_.data(); }

 private:
  struct alignas(LINE) Line {
    float values[LANES];
  };
  std::vector<Line> lines_;
};

struct Scratch {
  Work work;
  Lines scores;               // [queries][keys of the work up to a multiple of 16]
  Lines sums;                 // [queries][size up to a multiple of 16]
  std::vector<float> totals;  // [queries]
};

// Where keys or values of one key-value head begin in the cache: their numbers and, of int8, their scales.
template <class Cached>
struct Side {
  const Cached *numbers;
  const float *scales;
};

template <class Cached>
struct Job {
  const Attention &all;
  Side<Cached> keys, values;
  long block_size, block_vectors;  // distances of blocks of the cache, in numbers and in vectors
  long row_size;                   // of scores
  Scratch &scratch;

  const Query &query(long i) const { return scratch.work.queries[size_t(i)]; }
  const Visit &visit(long v) const { return scratch.work.visits[size_t(v)]; }
  long num_queries() const { return long(scratch.work.queries.size()); }
  long num_visits() const { return long(scratch.work.visits.size()); }
  float *scores(long i) const { return scratch.scores.data() + i * row_size; }
  float *sums(long i) const { return scratch.sums.data() + i * all.padded_size(); }

  // What a visit reads: [size, 16] numbers of keys, [16, size] of values, 16 scales.
  const Cached *numbers(const Side<Cached> &side, long v) const { return side.numbers + visit(v).block * block_size; }
  const float *scales(const Side<Cached> &side, long v) const { return side.scales + visit(v).block * block_vectors; }

  // The blocks of keys, then those of values: asks memory for one of them.
  [[gnu::always_inline]] void fetch_block(long number) const {
    if (number >= 2 * num_visits()) return;
    const long v = number < num_visits() ? number : number - num_visits();
    const Side<Cached> &side = number < num_visits() ? keys : values;
    const auto *block = (const char *)numbers(side, v);
    for (long i = 0; i < BLOCK * all.size * long(sizeof(Cached)); i += LINE) fetch(block + i);
    if constexpr (HAS_SCALES<Cached>) fetch(scales(side, v));
  }
};

// Calls function(first, std::integral_constant<int, count>) for groups of at most MAX_QUERIES queries.
template <int COUNT = MAX_QUERIES, class Function>
void for_groups(long first, long end, const Function &function) {
  if constexpr (COUNT > 0) {
    for (; first + COUNT <= end; first += COUNT) function(first, std::integral_constant<int, COUNT>());
    for_groups<COUNT - 1>(first, end, function);
  }
}

}  // namespace
}  // namespace actorlm
