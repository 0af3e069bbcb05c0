// Causal attention of a step's tokens to the paged cache: softmax(q k^T / sqrt(size)) v.
//
// A tile is some consecutive tokens of one sequence and all keys up to the last of them; a job is one tile and one
// key-value head, with all query heads that share it. Every number is computed in an order that depends on nothing but
// the sequence: a score is one chain of multiply-adds over the features; the exponentials are summed in 16 lanes, key
// by key, and the lanes in a fixed order; an output is one chain over the keys. So tiles, chunks and batches do not
// change a bit of it.
#include <algorithm>
#include <cmath>
#include <vector>

#include "abi.h"
#include "pool.h"
#include "simd.h"

namespace actorlm {
namespace {

constexpr long BLOCK = LANES;       // keys of a block of the cache
constexpr long BLOCKS_AT_ONCE = 4;  // whose values stay in the first-level cache for all queries of a tile
constexpr long BLOCKS_AHEAD = 2;    // by which memory is asked for keys and values before they are needed
#if defined(__AVX512F__)
constexpr int MAX_QUERIES = 8, WIDTH = 2;
#else
constexpr int MAX_QUERIES = 6, WIDTH = 1;
#endif

struct Attention {
  const float *queries;   // [tokens, q_heads, size], tokens at a distance of query_stride
  float *out;             // [tokens, q_heads, size]
  const int32_t *tables;  // [rows, table_width]: the blocks of each sequence
  const int32_t *tiles;   // [4, tiles]: row, first token, its position, number of tokens
  long num_tiles, table_width, query_stride, q_heads, kv_heads, size, num_blocks;
};

struct Scratch {
  std::vector<float> transposed;  // one block of keys: [size up to a multiple of 16][16]
  std::vector<float> scores;      // [queries of the tile][keys]
  std::vector<float> sums;        // [queries of the tile][size up to a multiple of 16]
};

template <class Cached>
struct Tile {
  const Attention &job;
  const Cached *keys, *values;  // the cache of this key-value head, blocks at a distance of block_stride
  const int32_t *table;
  long block_stride;
  const float *first_query;
  float *first_out;
  long position, tokens, group;  // group query heads share the key-value head
  long num_blocks, row_size;     // of keys; row_size is that of a row of scores
  Scratch &scratch;

  long queries() const { return tokens * group; }
  const float *query(long i) const { return first_query + i / group * job.query_stride + i % group * job.size; }
  float *out(long i) const { return first_out + i / group * job.q_heads * job.size + i % group * job.size; }
  long num_keys(long i) const { return position + i / group + 1; }
  float *scores(long i) const { return scratch.scores.data() + i * row_size; }
  long padded_size() const { return (job.size + LANES - 1) / LANES * LANES; }
  float *sums(long i) const { return scratch.sums.data() + i * padded_size(); }
  const Cached *block(const Cached *cache, long b) const { return cache + table[b] * block_stride; }

  [[gnu::always_inline]] void fetch_block(const Cached *cache, long b) const {
    if (b >= num_blocks) return;
    const char *bytes = (const char *)block(cache, b);
    for (long i = 0; i < BLOCK * job.size * long(sizeof(Cached)); i += LINE) fetch(bytes + i);
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
void score(const Tile<Cached> &tile, long first, long block) {
  const float *query[QUERIES];
  Vec sums[QUERIES];
  for (int i = 0; i < QUERIES; i++) query[i] = tile.query(first + i), sums[i] = broadcast(0.0f);
  const float *keys = tile.scratch.transposed.data();
  for (long k = 0; k < tile.job.size; k++) {
    const Vec key = load(keys + k * LANES);
#pragma GCC unroll 8
    for (int i = 0; i < QUERIES; i++) sums[i] = fma(broadcast(query[i][k]), key, sums[i]);
  }
  const Vec scale = broadcast(1.0f / std::sqrt(float(tile.job.size)));
  for (int i = 0; i < QUERIES; i++) store(tile.scores(first + i) + block * BLOCK, sums[i] * scale);
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

// Adds the values of blocks [begin, end), each times its weight, to the sums of some queries, for some features.
template <int QUERIES, int FEATURES, class Cached>
void add_values(const Tile<Cached> &tile, long first, long feature, long begin, long end, long num_keys) {
  Vec sums[QUERIES][FEATURES];
  for (int i = 0; i < QUERIES; i++) {
    for (int f = 0; f < FEATURES; f++) sums[i][f] = load(tile.sums(first + i) + feature + f * LANES);
  }
  const long size = tile.job.size;
  for (long b = begin; b < end; b++) {
    const Cached *values = tile.block(tile.values, b) + feature;
    const float *weights = tile.scores(first) + b * BLOCK;
    const long count = std::min(BLOCK, num_keys - b * BLOCK);
    for (long key = 0; key < count; key++) {
      Vec value[FEATURES];
#pragma GCC unroll 4
      for (int f = 0; f < FEATURES; f++) value[f] = load_part(values + key * size, f * LANES, size - feature);
#pragma GCC unroll 8
      for (int i = 0; i < QUERIES; i++) {
        const Vec weight = broadcast(weights[i * tile.row_size + key]);
#pragma GCC unroll 4
        for (int f = 0; f < FEATURES; f++) sums[i][f] = fma(weight, value[f], sums[i][f]);
      }
    }
  }
  for (int i = 0; i < QUERIES; i++) {
    for (int f = 0; f < FEATURES; f++) store(tile.sums(first + i) + feature + f * LANES, sums[i][f]);
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
void score_all(const Tile<Cached> &tile) {
  tile.fetch_block(tile.keys, 1);
  for (long b = 0; b < tile.num_blocks; b++) {
    if (b + BLOCKS_AHEAD < tile.num_blocks) {
      tile.fetch_block(tile.keys, b + BLOCKS_AHEAD);
    } else {
      tile.fetch_block(tile.values, b + BLOCKS_AHEAD - tile.num_blocks);
    }
    transpose_block(tile.block(tile.keys, b), tile.scratch.transposed.data(), tile.job.size);
    for_groups(0, tile.queries(), [&](long first, auto count) { score<decltype(count)::value>(tile, first, b); });
  }
}

template <class Cached>
void add_all_values(const Tile<Cached> &tile) {
  for (long begin = 0; begin < tile.num_blocks; begin += BLOCKS_AT_ONCE) {
    const long end = std::min(begin + BLOCKS_AT_ONCE, tile.num_blocks);
    for (long b = begin; b < end; b++) tile.fetch_block(tile.values, b + BLOCKS_AHEAD);
    for (long feature = 0; feature < tile.job.size;) {
      const bool wide = WIDTH > 1 && feature + WIDTH * LANES <= tile.job.size;
      for_groups(0, tile.queries(), [&](long first, auto count) {
        constexpr int QUERIES = decltype(count)::value;
        const long keys = tile.num_keys(first + QUERIES - 1);
        const long last = std::min(end, (keys + BLOCK - 1) / BLOCK);
        if (wide) {
          add_values<QUERIES, WIDTH>(tile, first, feature, begin, last, keys);
        } else {
          add_values<QUERIES, 1>(tile, first, feature, begin, last, keys);
        }
      });
      feature += wide ? WIDTH * LANES : LANES;
    }
  }
}

template <class Cached>
void attend(const Tile<Cached> &tile) {
  const long size = tile.job.size, padded = tile.padded_size();
  tile.scratch.transposed.resize(size_t(padded * LANES));
  tile.scratch.scores.resize(size_t(tile.queries() * tile.row_size));
  tile.scratch.sums.assign(size_t(tile.queries() * padded), 0.0f);
  std::vector<float> totals(size_t(tile.queries()));
  score_all(tile);
  for (long i = 0; i < tile.queries(); i++) {
    totals[size_t(i)] = exponentiate(tile.scores(i), tile.num_keys(i), tile.row_size);
  }
  add_all_values(tile);
  const Vec zero = broadcast(0.0f);  // added, so that it does not matter whether a sum went through -0
  for (long i = 0; i < tile.queries(); i++) {
    const Vec total = broadcast(totals[size_t(i)]);
    for (long f = 0; f < size; f += LANES) store_part(tile.out(i), (load(tile.sums(i) + f) + zero) / total, f, size);
  }
}

template <class Cached>
void attend_all(Pool &pool, const Attention &job, const Cached *cache) {
  const long group = job.q_heads / job.kv_heads, head_stride = BLOCK * job.size;
  pool.run(job.num_tiles * job.kv_heads, [&](long chunk) {
    static thread_local Scratch scratch;
    const long t = chunk / job.kv_heads, head = chunk % job.kv_heads;
    const long row = job.tiles[t], token = job.tiles[job.num_tiles + t];
    const long position = job.tiles[2 * job.num_tiles + t], tokens = job.tiles[3 * job.num_tiles + t];
    const Cached *keys = cache + head * head_stride;
    const long num_blocks = (position + tokens + BLOCK - 1) / BLOCK;
    attend(Tile<Cached>{job, keys, keys + job.num_blocks * job.kv_heads * head_stride,
                        job.tables + row * job.table_width, job.kv_heads * head_stride,
                        job.queries + token * job.query_stride + head * group * job.size,
                        job.out + (token * job.q_heads + head * group) * job.size, position, tokens, group, num_blocks,
                        num_blocks * BLOCK, scratch});
  });
}

}  // namespace
}  // namespace actorlm

using namespace actorlm;

ACTORLM_API void paged_attention(Pool *pool, Type type, const void *cache, const float *queries, float *out,
                                 const int32_t *tables, const int32_t *tiles, long num_tiles, long table_width,
                                 long query_stride, long q_heads, long kv_heads, long size, long num_blocks) {
  const Attention job{queries,      out,     tables,   tiles, num_tiles, table_width,
                      query_stride, q_heads, kv_heads, size,  num_blocks};
  switch (type) {
    case Type::FLOAT32: return attend_all(*pool, job, (const float *)cache);
    case Type::FLOAT16: return attend_all(*pool, job, (const Half *)cache);
    case Type::BFLOAT16: return attend_all(*pool, job, (const BFloat16 *)cache);
  }
}
