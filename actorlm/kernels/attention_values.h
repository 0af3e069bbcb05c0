// From the weights of values to their sums.
#pragma once

#include <algorithm>

#include "attention_job.h"
#include "attention_scores.h"

namespace actorlm {
namespace {  // for one file, so that the compiler may inline all of it

constexpr long BLOCKS_AT_ONCE = 4;  // whose values stay in the first-level cache for all queries that read them
#if defined(__AVX512F__)
constexpr int WIDTH = 2;
#else
constexpr int WIDTH = 1;
#endif

// Adds the values of visits [begin, end), each times its weight, to the sums of some queries, for FEATURES Vecs
// of features, or for the PART of one with which a head ends.
template <int QUERIES, int FEATURES, bool PART, class Cached>
void add_values(const Job<Cached> &job, long first, long feature, long begin, long end) {
  Vec sums[QUERIES][FEATURES];  // in registers, if all loops over them are unrolled
#pragma GCC unroll 8
  for (int i = 0; i < QUERIES; i++) {
#pragma GCC unroll 4
    for (int f = 0; f < FEATURES; f++) sums[i][f] = load(job.sums(first + i) + feature + f * LANES);
  }
  const long size = job.all.size, num_keys = job.query(first + QUERIES - 1).end;
  for (long v = begin; v < end; v++) {
    const Cached *values = job.numbers(job.values, v) + feature;
    const float *weights = job.scores(first) + job.visit(v).index * BLOCK;
    const long count = std::min(BLOCK, num_keys - job.visit(v).index * BLOCK);
    for (long key = 0; key < count; key++) {
      Vec value[FEATURES];
#pragma GCC unroll 4
      for (int f = 0; f < FEATURES; f++) {
        const Cached *from = values + key * size + f * LANES;
        value[f] = PART ? load_first(from, size - feature) : load(from);
      }
#pragma GCC unroll 8
      for (int i = 0; i < QUERIES; i++) {
        const Vec weight = broadcast(weights[i * job.row_size + key]);
#pragma GCC unroll 4
        for (int f = 0; f < FEATURES; f++) sums[i][f] = fma(weight, value[f], sums[i][f]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < QUERIES; i++) {
#pragma GCC unroll 4
    for (int f = 0; f < FEATURES; f++) store(job.sums(first + i) + feature + f * LANES, sums[i][f]);
  }
}

// As many visits from `begin` on, at most BLOCKS_AT_ONCE, as are for the same queries.
template <class Cached>
long end_of_run(const Job<Cached> &job, long begin) {
  long end = begin + 1;
  while (end < std::min(begin + BLOCKS_AT_ONCE, job.num_visits()) && job.visit(end).first == job.visit(begin).first &&
         job.visit(end).end == job.visit(begin).end) {
    end++;
  }
  return end;
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
    for (long feature = 0; feature < job.all.size;) {
      const bool wide = WIDTH > 1 && feature + WIDTH * LANES <= job.all.size, whole = feature + LANES <= job.all.size;
      for_groups(job.visit(begin).first, job.visit(begin).end, [&](long first, auto count) {
        constexpr int QUERIES = decltype(count)::value;
        if (wide) {
          add_values<QUERIES, WIDTH, false>(job, first, feature, begin, end);
        } else if (whole) {
          add_values<QUERIES, 1, false>(job, first, feature, begin, end);
        } else {
          add_values<QUERIES, 1, true>(job, first, feature, begin, end);
        }
      });
      feature += wide ? WIDTH * LANES : LANES;
    }
  }
}

}  // namespace
}  // namespace actorlm
