// Causal attention of a step's tokens to the paged cache: softmax(q k^T / sqrt(size)) v.
//
// A tile is some consecutive tokens of one sequence and all keys up to the last of them. A group is one tile, or
// several whose sequences begin with the same blocks, which are then read once for all of them. A job is one group and
// one key-value head, with all query heads that share it. Every number is computed in an order that depends on nothing
// but the sequence: a score is one chain of multiply-adds over the features; the exponentials are summed in 16 lanes,
// key by key, and the lanes in a fixed order; an output is one chain over the keys. So tiles, groups, chunks and
// batches do not change a bit of it.
#include <algorithm>
#include <cmath>
#include <vector>

#include "abi.h"
#include "attention_work.h"
#include "pool.h"
#include "simd.h"

namespace actorlm {
namespace {

constexpr long BLOCKS_AT_ONCE = 4;  // whose values stay in the first-level cache for all queries that read them
constexpr long BLOCKS_AHEAD = 2;    // by which memory is asked for keys and values before they are needed
#if defined(__AVX512F__)
constexpr int MAX_QUERIES = 8, WIDTH = 2;
#else
constexpr int MAX_QUERIES = 6, WIDTH = 1;
#endif

struct Scratch {
  Work work;
  std::vector<float> transposed;  // one block of keys: [size up to a multiple of 16][16]
  std::vector<float> scores;      // [queries][keys of the longest sequence up to a multiple of 16]
  std::vector<float> totals;      // [queries]
  std::vector<float> sums;        // [queries][size up to a multiple of 16]
};

template <class Cached>
struct Job {
  const Attention &all;
  const Cached *keys, *values;  // the cache of this key-value head, blocks at a distance of block_stride
  long block_stride, row_size;  // row_size is that of a row of scores
  Scratch &scratch;

  const Query &query(long i) const { return scratch.work.queries[size_t(i)]; }
  const Visit &visit(long v) const { return scratch.work.visits[size_t(v)]; }
  long num_queries() const { return long(scratch.work.queries.size()); }
  long num_visits() const { return long(scratch.work.visits.size()); }
  float *scores(long i) const { return scratch.scores.data() + i * row_size; }
  float *sums(long i) const { return scratch.sums.data() + i * all.padded_size(); }
  const Cached *key_block(long v) const { return keys + visit(v).block * block_stride; }
  const Cached *value_block(long v) const { return values + visit(v).block * block_stride; }

  // The blocks of keys, then those of values: asks memory for one of them.
  [[gnu::always_inline]] void fetch_block(long number) const {
    if (number >= 2 * num_visits()) return;
    const auto block = number < num_visits() ? key_block(number) : value_block(number - num_visits());
    for (long i = 0; i < BLOCK * all.size * long(sizeof(Cached)); i += LINE) fetch((const char *)block + i);
  }
};

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
void score(const Job<Cached> &job, long first, long index) {
  const float *query[QUERIES];
  Vec sums[QUERIES];
  for (int i = 0; i < QUERIES; i++) query[i] = job.query(first + i).in, sums[i] = broadcast(0.0f);
  const float *keys = job.scratch.transposed.data();
  for (long k = 0; k < job.all.size; k++) {
    const Vec key = load(keys + k * LANES);
#pragma GCC unroll 8
    for (int i = 0; i < QUERIES; i++) sums[i] = fma(broadcast(query[i][k]), key, sums[i]);
  }
  const Vec scale = broadcast(1.0f / std::sqrt(float(job.all.size)));
  for (int i = 0; i < QUERIES; i++) store(job.scores(first + i) + index * BLOCK, sums[i] * scale);
}

// Turns a row of scores into e^(score - the highest), zero for keys that the query does not see; gives their sum.
float exponentiate(float *scores, long num_keys, long row_size) {
  std::fill(scores + num_keys, scores + (num_keys + LANES - 1) / LANES * LANES, scores[0]);
  Vec highest = load(scores);
  for (long key = LANES; key < num_keys; key += LANES) highest = max(highest, load(scores + key));
  const Vec top = broadcast(max_of(highest));
  const long whole = num_keys / LANES * LANES;
  Vec total = broadcast(0.0f);
  for (long key = 0; key < whole; key += LANES) {
    const Vec weight = exp(load(scores + key) - top);
    store(scores + key, weight);
    total = total + weight;
  }
  if (whole < num_keys) {
    store(scores + whole, exp(load(scores + whole) - top));
    std::fill(scores + num_keys, scores + whole + LANES, 0.0f);
    total = total + load(scores + whole);
  }
  std::fill(scores + (num_keys + LANES - 1) / LANES * LANES, scores + row_size, 0.0f);
  return sum(total);
}

// Adds the values of visits [begin, end), each times its weight, to the sums of some queries, for some features.
template <int QUERIES, int FEATURES, class Cached>
void add_values(const Job<Cached> &job, long first, long feature, long begin, long end) {
  Vec sums[QUERIES][FEATURES];
  for (int i = 0; i < QUERIES; i++) {
    for (int f = 0; f < FEATURES; f++) sums[i][f] = load(job.sums(first + i) + feature + f * LANES);
  }
  const long size = job.all.size, num_keys = job.query(first + QUERIES - 1).num_keys;
  for (long v = begin; v < end; v++) {
    const Cached *values = job.value_block(v) + feature;
    const float *weights = job.scores(first) + job.visit(v).index * BLOCK;
    const long count = std::min(BLOCK, num_keys - job.visit(v).index * BLOCK);
    for (long key = 0; key < count; key++) {
      Vec value[FEATURES];
#pragma GCC unroll 4
      for (int f = 0; f < FEATURES; f++) value[f] = load_part(values + key * size, f * LANES, size - feature);
#pragma GCC unroll 8
      for (int i = 0; i < QUERIES; i++) {
        const Vec weight = broadcast(weights[i * job.row_size + key]);
#pragma GCC unroll 4
        for (int f = 0; f < FEATURES; f++) sums[i][f] = fma(weight, value[f], sums[i][f]);
      }
    }
  }
  for (int i = 0; i < QUERIES; i++) {
    for (int f = 0; f < FEATURES; f++) store(job.sums(first + i) + feature + f * LANES, sums[i][f]);
  }
}

// Calls function(first, std::integral_constant<int, count>) for groups of at most MAX_QUERIES queries.
template <int COUNT = MAX_QUERIES, class Function>
void for_groups(long first, long end, const Function &function) {
  if constexpr (COUNT > 0) {
    for (; first + COUNT <= end; first += COUNT) function(first, std::integral_constant<int, COUNT>());
    for_groups<COUNT - 1>(first, end, function);
  }
}

template <class Cached>
void score_all(const Job<Cached> &job) {
  job.fetch_block(1);
  for (long v = 0; v < job.num_visits(); v++) {
    const Visit &visit = job.visit(v);
    job.fetch_block(v + BLOCKS_AHEAD);
    transpose_block(job.key_block(v), job.scratch.transposed.data(), job.all.size);
    for_groups(visit.first, visit.end,
               [&](long first, auto count) { score<decltype(count)::value>(job, first, visit.index); });
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

template <class Cached>
void add_all_values(const Job<Cached> &job) {
  for (long begin = 0, end; begin < job.num_visits(); begin = end) {
    end = end_of_run(job, begin);
    for (long v = begin; v < end; v++) job.fetch_block(job.num_visits() + v + BLOCKS_AHEAD);
    for (long feature = 0; feature < job.all.size;) {
      const bool wide = WIDTH > 1 && feature + WIDTH * LANES <= job.all.size;
      for_groups(job.visit(begin).first, job.visit(begin).end, [&](long first, auto count) {
        if (wide) {
          add_values<decltype(count)::value, WIDTH>(job, first, feature, begin, end);
        } else {
          add_values<decltype(count)::value, 1>(job, first, feature, begin, end);
        }
      });
      feature += wide ? WIDTH * LANES : LANES;
    }
  }
}

template <class Cached>
void attend(const Job<Cached> &job) {
  const long size = job.all.size, padded = job.all.padded_size();
  job.scratch.transposed.resize(size_t(padded * LANES));
  job.scratch.scores.resize(size_t(job.num_queries() * job.row_size));
  job.scratch.totals.resize(size_t(job.num_queries()));
  job.scratch.sums.assign(size_t(job.num_queries() * padded), 0.0f);
  score_all(job);
  for (long i = 0; i < job.num_queries(); i++) {
    job.scratch.totals[size_t(i)] = exponentiate(job.scores(i), job.query(i).num_keys, job.row_size);
  }
  add_all_values(job);
  const Vec zero = broadcast(0.0f);  // added, so that it does not matter whether a sum went through -0
  for (long i = 0; i < job.num_queries(); i++) {
    const Vec total = broadcast(job.scratch.totals[size_t(i)]);
    for (long f = 0; f < size; f += LANES)
      store_part(job.query(i).out, (load(job.sums(i) + f) + zero) / total, f, size);
  }
}

template <class Cached>
void attend_all(Pool &pool, const Attention &all, const Cached *cache) {
  const long head_stride = BLOCK * all.size;
  pool.run(all.plan.num_groups * all.kv_heads, [&](long chunk) {
    static thread_local Scratch scratch;
    const long head = chunk % all.kv_heads;
    scratch.work.list(all, chunk / all.kv_heads, head);
    const Cached *keys = cache + head * head_stride, *values = keys + all.num_blocks * all.kv_heads * head_stride;
    attend(Job<Cached>{all, keys, values, all.kv_heads * head_stride, scratch.work.num_blocks * BLOCK, scratch});
  });
}

}  // namespace
}  // namespace actorlm

using namespace actorlm;

ACTORLM_API void paged_attention(Pool *pool, Type type, const void *cache, const float *queries, float *out,
                                 const Plan *plan, long query_stride, long q_heads, long kv_heads, long size,
                                 long num_blocks) {
  const Attention all{*plan, queries, out, query_stride, q_heads, kv_heads, size, num_blocks};
  switch (type) {
    case Type::FLOAT32: return attend_all(*pool, all, (const float *)cache);
    case Type::FLOAT16: return attend_all(*pool, all, (const Half *)cache);
    case Type::BFLOAT16: return attend_all(*pool, all, (const BFloat16 *)cache);
  }
}
