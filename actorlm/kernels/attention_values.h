// From the weights of values to their sums.
#pragma once

#include <algorithm>

#include "attention_job.h"
#include "attention_scores.h"

namespace actorlm {
namespace {  // for one file, so that the compiler may inline all of it

// How many Vecs of features are summed at once, as for keys.
constexpr int features_at_once(int queries) {
#if defined(__AVX512F__)
  return queries <= 4 ? 4 : 2;
#else
  return queries <= 3 ? 2 : 1;
#endif
}

// Adds the values of visits [begin, end), each times its weight, to the sums of some queries, for FEATURES Vecs
// of features, or for the PART of one with which a head ends.
template <int QUERIES, int FEATURES, bool PART, class Cached>
void add_values(const Job<Cached> &job, long first, long feature, long begin, long end) {
  Vec sums[QUERIES][FEATURES];
  unrolled<QUERIES>([&](auto i) {
    unrolled<FEATURES>([&](auto f) { sums[i][f] = load(job.sums(first + i) + feature + f * LANES); });
  });
  const long size = job.all.size, num_keys = job.query(first + QUERIES - 1).end;
  for (long v = begin; v < end; v++) {
    const Cached *values = job.numbers(job.values, v) + feature;
    const float *weights = job.scores(first) + job.visit(v).index * BLOCK;
    const long count = std::min(BLOCK, num_keys - job.visit(v).index * BLOCK);
    for (long key = 0; key < count; key++) {
      Vec value[FEATURES];
      unrolled<FEATURES>([&](auto f) {
        const Cached *from = values + key * size + f * LANES;
        value[f] = PART ? load_first(from, size - feature) : load(from);
      });
      unrolled<QUERIES>([&](auto i) {
        const Vec weight = broadcast(weights[i * job.row_size + key]);
        unrolled<FEATURES>([&](auto f) { sums[i][f] = fma(weight, value[f], sums[i][f]); });
      });
    }
  }
  unrolled<QUERIES>([&](auto i) {
    unrolled<FEATURES>([&](auto f) { store(job.sums(first + i) + feature + f * LANES, sums[i][f]); });
  });
}

// All features of the values of visits [begin, end) for some queries.
template <int QUERIES, class Cached>
void add_features(const Job<Cached> &job, long first, long begin, long end) {
  constexpr int FEATURES = features_at_once(QUERIES);
  const long size = job.all.size;
  long feature = 0;
  for (; feature + FEATURES * LANES <= size; feature += FEATURES * LANES) {
    add_values<QUERIES, FEATURES, false>(job, first, feature, begin, end);
  }
  for (; feature + LANES <= size; feature += LANES) add_values<QUERIES, 1, false>(job, first, feature, begin, end);
  if (feature < size) add_values<QUERIES, 1, true>(job, first, feature, begin, end);
}

// Multiplies weights by the scales of their values.
template <class Cached>
void scale_weights(const Job<Cached> &job, long v) {
  const Vec scales = load(job.scales(job.values, v));
  for (long i = job.visit(v).first; i < job.visit(v).end; i++) {
    float *weights = job.scores(i) + job.visit(v).index * BLOCK;
    store(weights, load(weights) * scales);
  }
}

template <class Cached>
void add_all_values(const Job<Cached> &job) {
  for (long begin = 0, end; begin < job.num_visits(); begin = end) {
    end = end_of_run(job, begin);
    for (long v = begin; v < end; v++) job.fetch_block(job.num_visits() + v + BLOCKS_AHEAD);
    if constexpr (HAS_SCALES<Cached>) {
      for (long v = begin; v < end; v++) scale_weights(job, v);
    }
    for_groups(job.visit(begin).first, job.visit(begin).end,
               [&](long first, auto count) { add_features<decltype(count)::value>(job, first, begin, end); });
  }
}

}  // namespace
}  // namespace actorlm
