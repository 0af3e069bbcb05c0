// Causal attention of a step's tokens to the paged cache: softmax(scale q k^T) v, or a variant of it.
//
// A tile is some consecutive tokens of one sequence and all keys up to the last of them. A group is one tile, or
// several whose sequences begin with the same blocks, which are then read once for all of them. A job is one group and
// one key-value head, with all query heads that share it. Every number is computed in an order that depends on nothing
// but the sequence: a score is one chain of multiply-adds over the features, times the scales; the exponentials are
// summed in 16 lanes, key by key, and the lanes in a fixed order; an output is one chain over the keys. So tiles,
// groups, chunks and batches do not change a bit of it.
#include "abi.h"
#include "attention_job.h"
#include "attention_scores.h"
#include "attention_values.h"
#include "pool.h"

namespace actorlm {
namespace {

template <class Cached>
void attend(const Job<Cached> &job) {
  const long size = job.all.size, padded = job.all.padded_size();
  job.scratch.scores.resize(job.num_queries() * job.row_size);
  job.scratch.totals.resize(size_t(job.num_queries()));
  job.scratch.sums.zero(job.num_queries() * padded);
  score_all(job);
  for (long i = 0; i < job.num_queries(); i++) {
    job.scratch.totals[size_t(i)] = exponentiate(job.scores(i), job.query(i), job.all.variant, job.row_size);
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
void attend_all(Pool &pool, const Attention &all, Side<Cached> cache) {
  const long block_vectors = all.kv_heads * BLOCK, num_vectors = all.num_blocks * block_vectors;
  const auto from = [&](long vector) { return Side<Cached>{cache.numbers + vector * all.size, cache.scales + vector}; };
  pool.run(all.plan.num_groups * all.kv_heads, [&](long chunk) {
    static thread_local Scratch scratch;
    const long head = chunk % all.kv_heads, key = head * BLOCK, value = num_vectors + key;
    scratch.work.list(all, chunk / all.kv_heads, head);
    const long row_size = scratch.work.num_blocks * BLOCK;
    attend(Job<Cached>{all, from(key), from(value), block_vectors * all.size, block_vectors, row_size, scratch});
  });
}

}  // namespace
}  // namespace actorlm

using namespace actorlm;

// `scales` has one number for each vector of a cache of int8; others have none. For `soft_cap`, `window` and `sinks`
// see Variant.
ACTORLM_API void paged_attention(Pool *pool, CacheType type, const void *cache, const float *scales,
                                 const float *queries, float *out, const Plan *plan, const float *sinks,
                                 long query_stride, long q_heads, long kv_heads, long size, long num_blocks,
                                 long window, float scale, float soft_cap) {
  const Variant variant{scale, soft_cap, window, sinks};
  const Attention all{*plan, variant, queries, out, query_stride, q_heads, kv_heads, size, num_blocks};
  with_numbers(type, cache, [&](auto *numbers) {
    using Cached = std::remove_const_t<std::remove_pointer_t<decltype(numbers)>>;
    attend_all(*pool, all, Side<Cached>{numbers, scales});
  });
}
