// From queries and keys to the weights of values, and their sums.
#pragma once

#include <algorithm>

#include "attention_job.h"
#include "exp.h"
#include "unrolled.h"

namespace actorlm {
namespace {  // for one file, so that the compiler may inline all of it

constexpr long BLOCKS_AT_ONCE = 4;  // that stay in the first-level cache for all queries that read them
constexpr long BLOCKS_AHEAD = 4;    // by which memory is asked for keys and values before they are needed

// How many blocks of keys are multiplied at once: so many that sums in the making are enough to hide their latency.
constexpr int blocks_at_once(int queries) {
#if defined(__AVX512F__)
  return queries <= 3 ? 4 : 2;
#else
  return queries <= 3 ? 2 : 1;
#endif
}

// Scores of some queries for the keys of VISITS visits.
template <int QUERIES, int VISITS, class Cached>
void score(const Job<Cached> &job, long first, long v) {
  const float *query[QUERIES];
  const Cached *keys[VISITS];  // a feature of all keys, then the next one
  Vec sums[QUERIES][VISITS];
  unrolled<VISITS>([&](auto n) { keys[n] = job.numbers(job.keys, v + n); });
  unrolled<QUERIES>([&](auto i) {
    query[i] = job.query(first + i).in;
    unrolled<VISITS>([&](auto n) { sums[i][n] = broadcast(0.0f); });
  });
  for (long k = 0; k < job.all.size; k++) {
    Vec key[VISITS];
    unrolled<VISITS>([&](auto n) { key[n] = load(keys[n] + k * LANES); });
    unrolled<QUERIES>([&](auto i) {
      const Vec number = broadcast(query[i][k]);
      unrolled<VISITS>([&](auto n) { sums[i][n] = fma(number, key[n], sums[i][n]); });
    });
  }
  const Vec scale = broadcast(job.all.variant.scale);
  unrolled<QUERIES>([&](auto i) {
    unrolled<VISITS>([&](auto n) {
      Vec scores = sums[i][n] * scale;
      if constexpr (HAS_SCALES<Cached>) scores = scores * load(job.scales(job.keys, v + n));
      store(job.scores(first + i) + job.visit(v + n).index * BLOCK, scores);
    });
  });
}

template <int QUERIES, class Cached>
void score_visits(const Job<Cached> &job, long first, long v, long end) {
  constexpr int VISITS = blocks_at_once(QUERIES);
  for (; v + VISITS <= end; v += VISITS) score<QUERIES, VISITS>(job, first, v);
  for (; v < end; v++) score<QUERIES, 1>(job, first, v);
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

template <class Cached>
void score_all(const Job<Cached> &job) {
  for (long v = 0; v < BLOCKS_AHEAD; v++) job.fetch_block(v);
  for (long begin = 0, end; begin < job.num_visits(); begin = end) {
    end = end_of_run(job, begin);
    for (long v = begin; v < end; v++) job.fetch_block(v + BLOCKS_AHEAD);
    for_groups(job.visit(begin).first, job.visit(begin).end,
               [&](long first, auto count) { score_visits<decltype(count)::value>(job, first, begin, end); });
  }
}

inline void cap(float *scores, long begin, long end, float soft_cap) {
  const Vec bound = broadcast(soft_cap);
  for (long key = begin; key < end; key += LANES) store(scores + key, bound * tanh(load(scores + key) / bound));
}

// Sixteen scores become e^(score - top), and zero outside [begin, end).
inline Vec exponentiate_edge(float *scores, Vec top, long begin, long end) {
  store(scores, exp(load(scores) - top));
  std::fill(scores, scores + std::max(begin, 0L), 0.0f);
  std::fill(scores + std::min(end, long(LANES)), scores + LANES, 0.0f);
  return load(scores);
}

// Turns a row of scores into e^(score - the highest), zero for keys that the query does not see; gives their sum.
inline float exponentiate(float *scores, const Query &query, const Variant &variant, long row_size) {
  const long begin = query.begin / LANES * LANES, end = (query.end + LANES - 1) / LANES * LANES;
  std::fill(scores + begin, scores + query.begin, scores[query.begin]);
  std::fill(scores + query.end, scores + end, scores[query.begin]);
  if (variant.soft_cap != 0) cap(scores, begin, end, variant.soft_cap);
  Vec highest = load(scores + begin);
  for (long key = begin + LANES; key < end; key += LANES) highest = max(highest, load(scores + key));
  float most = max_of(highest);
  if (variant.sinks != nullptr) most = variant.sinks[query.head] > most ? variant.sinks[query.head] : most;
  const Vec top = broadcast(most);
  Vec total = broadcast(0.0f);
  long key = begin;
  if (key < query.begin) {
    total = exponentiate_edge(scores + key, top, query.begin - key, query.end - key);
    key += LANES;
  }
  for (; key + LANES <= query.end; key += LANES) {
    const Vec weight = exp(load(scores + key) - top);
    store(scores + key, weight);
    total = total + weight;
  }
  if (key < query.end) total = total + exponentiate_edge(scores + key, top, 0, query.end - key);
  std::fill(scores, scores + begin, 0.0f);
  std::fill(scores + end, scores + row_size, 0.0f);
  if (variant.sinks == nullptr) return sum(total);
  return sum(total) + first_of(exp(broadcast(variant.sinks[query.head]) - top));
}

}  // namespace
}  // namespace actorlm
