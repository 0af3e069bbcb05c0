// From queries and keys to the weights of values, and their sums.
#pragma once

#include <algorithm>

#include "attention_job.h"
#include "exp.h"

namespace actorlm {
namespace {  // for one file, so that the compiler may inline all of it

constexpr long BLOCKS_AHEAD = 2;  // by which memory is asked for keys and values before they are needed

template <class Cached>
void transpose_block(const Cached *keys, float *to, long size) {
  for (long begin = 0; begin < size; begin += LANES) {
    Vec rows[LANES];
    for (int key = 0; key < LANES; key++) rows[key] = load_part(keys + key * size, begin, size);
    transpose(rows);
    for (int i = 0; i < LANES; i++) store(to + (begin + i) * LANES, rows[i]);
  }
}

template <int QUERIES, class Cached>
void score(const Job<Cached> &job, long first, long v) {
  const float *query[QUERIES];
  Vec sums[QUERIES];  // in registers, if all loops over them are unrolled
#pragma GCC unroll 8
  for (int i = 0; i < QUERIES; i++) query[i] = job.query(first + i).in, sums[i] = broadcast(0.0f);
  const float *keys = job.scratch.transposed.data();
  for (long k = 0; k < job.all.size; k++) {
    const Vec key = load(keys + k * LANES);
#pragma GCC unroll 8
    for (int i = 0; i < QUERIES; i++) sums[i] = fma(broadcast(query[i][k]), key, sums[i]);
  }
  const Vec scale = broadcast(job.all.variant.scale);
  const long index = job.visit(v).index;
#pragma GCC unroll 8
  for (int i = 0; i < QUERIES; i++) {
    Vec scores = sums[i] * scale;
    if constexpr (HAS_SCALES<Cached>) scores = scores * load(job.scales(job.keys, v));
    store(job.scores(first + i) + index * BLOCK, scores);
  }
}

template <class Cached>
void score_all(const Job<Cached> &job) {
  job.fetch_block(1);
  for (long v = 0; v < job.num_visits(); v++) {
    job.fetch_block(v + BLOCKS_AHEAD);
    transpose_block(job.numbers(job.keys, v), job.scratch.transposed.data(), job.all.size);
    for_groups(job.visit(v).first, job.visit(v).end,
               [&](long first, auto count) { score<decltype(count)::value>(job, first, v); });
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
