// What attention has to compute in a step, and which queries read which block of the cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "simd.h"

namespace actorlm {

constexpr long BLOCK = LANES;  // keys of a block of the cache

struct Tile {
  long row, token, position, tokens;

  long num_blocks() const { return (position + tokens + BLOCK - 1) / BLOCK; }
};

// Who attends to what, in all layers of a step. Laid out as `TilePlan.numbers_6` is.
struct Plan {
  const int32_t *tables;  // [rows, table_width]: the blocks of each sequence
  const int32_t *tiles;   // [4, tiles]: row, first token, its position, number of tokens
  const int32_t *groups;  // [3, groups]: first tile, number of tiles, number of blocks that are read for all of them
  int64_t table_width, num_tiles, num_groups;

  Tile tile(long t) const {
    return {tiles[t], tiles[num_tiles + t], tiles[2 * num_tiles + t], tiles[3 * num_tiles + t]};
  }
};

// How a layer makes weights of queries and keys.
struct Variant {
  float scale;         // of the products
  float soft_cap;      // a score becomes soft_cap tanh(score / soft_cap); 0: it stays
  long window;         // a query sees the last so many keys, its own among them; 0: all
  const float *sinks;  // [q_heads]: one more score for each, of a key without a value; null: none

  // Of the keys that the query at this position sees.
  long first_key(long position) const { return window == 0 ? 0 : std::max(0L, position + 1 - window); }
};

struct Attention {
  Plan plan;
  Variant variant;
  const float *queries;  // [tokens, q_heads, size], tokens at a distance of query_stride
  float *out;            // [tokens, q_heads, size]
  long query_stride, q_heads, kv_heads, size, num_blocks;

  long padded_size() const { return (size + LANES - 1) / LANES * LANES; }
};

struct Query {  // of one token and one head
  const float *in;
  float *out;
  long head;
  long begin, end;  // of the keys that it sees, from the first key of the work on
};

struct Visit {  // a block, and the queries [first, end) that read it
  long first, end;
  long index;  // of the block, from the first one of the work on
  long block;  // of the cache
};

// What one group needs of one key-value head. Its first block is the first one that a query of it sees.
class Work {
 public:
  std::vector<Query> queries;
  std::vector<Visit> visits;
  long num_blocks;  // from the first one to the last one of the longest sequence

  void list(const Attention &all, long group, long head) {
    const long begin = all.plan.groups[group], end = begin + all.plan.groups[all.plan.num_groups + group];
    const long shared = all.plan.groups[2 * all.plan.num_groups + group];
    queries.clear(), visits.clear(), first_block_ = first_block(all, all.plan.tile(begin)), num_blocks = 0;
    for (long t = begin + 1; t < end; t++) first_block_ = std::min(first_block_, first_block(all, all.plan.tile(t)));
    for (long t = begin; t < end; t++) add_queries(all, all.plan.tile(t), head);
    add_visits(all, all.plan.tile(begin), 0, long(queries.size()), first_block_, shared);
    for (long t = begin, first = 0; t < end; t++) {
      const Tile tile = all.plan.tile(t);
      const long next = first + tile.tokens * (all.q_heads / all.kv_heads);
      add_visits(all, tile, first, next, std::max(shared, first_block(all, tile)), tile.num_blocks());
      num_blocks = std::max(num_blocks, tile.num_blocks() - first_block_), first = next;
    }
  }

 private:
  long first_block_;

  static long first_block(const Attention &all, const Tile &tile) {
    return all.variant.first_key(tile.position) / BLOCK;
  }

  void add_queries(const Attention &all, const Tile &tile, long head) {
    const long heads = all.q_heads / all.kv_heads, first_key = first_block_ * BLOCK;
    for (long i = 0; i < tile.tokens; i++) {
      const long position = tile.position + i, begin = all.variant.first_key(position) - first_key;
      for (long h = head * heads; h < (head + 1) * heads; h++) {
        const float *in = all.queries + (tile.token + i) * all.query_stride + h * all.size;
        float *out = all.out + ((tile.token + i) * all.q_heads + h) * all.size;
        queries.push_back({in, out, h, begin, position + 1 - first_key});
      }
    }
  }

  void add_visits(const Attention &all, const Tile &tile, long first, long end, long block, long end_block) {
    const int32_t *table = all.plan.tables + tile.row * all.plan.table_width;
    for (; block < end_block; block++) visits.push_back({first, end, block - first_block_, table[block]});
  }
};

}  // namespace actorlm
