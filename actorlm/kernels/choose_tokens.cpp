// The next token of each row from its logits: the highest, or drawn after temperature, min-p, top-k and top-p.
//
// Weights are e^((logit - highest) / temperature) in float32, their sums float64. Tokens are never sorted as a whole:
// they are dealt by their distance from the highest logit into buckets of an eighth of a power of two, and only the
// bucket in which top-k or top-p ends is put in order. A row is one thread's, in one order.
#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "abi.h"
#include "exp.h"
#include "pool.h"
#include "simd.h"

namespace actorlm {
namespace {

constexpr long RUN = 64 * LANES;  // weights whose sum is taken at once
constexpr int BUCKETS = 2048;
constexpr float NEGLIGIBLE = -87.0f;  // e to this is the least that counts

struct Choice {
  const double *temperature, *min_p, *top_p;  // one for each row; temperature 0 takes the highest, top_p 1 is off
  const int64_t *top_k;                       // 0 is off
  const uint64_t *words;                      // 64 random bits for each row
  int32_t *tokens;
  float *best;  // the highest logit, or one that is not a number if there is any
  long rows, size;
};

struct Row {
  const float *logits;
  long size;
  float highest;
  std::vector<float> &weights;

  // Ascends as logits descend.
  int bucket(long i) const { return int(bits_of(highest - logits[i]) >> 20); }
};

// The highest logit and the first token that has it; not a number if any is none.
std::pair<float, long> find_highest(const float *logits, long size) {
  Vec lanes = broadcast(-std::numeric_limits<float>::infinity()), poison = broadcast(0.0f);
  long i = 0;
  for (; i + LANES <= size; i += LANES) {
    const Vec part = load(logits + i);
    lanes = max(lanes, part);
    poison = poison + (part - part);  // not a number where a logit is none, or infinite
  }
  float highest = max_of(lanes);
  float rest = 0.0f;
  for (; i < size; i++) {
    highest = logits[i] > highest ? logits[i] : highest;
    rest += logits[i] - logits[i];
  }
  if (!(sum(poison) + rest == 0.0f)) {
    for (long j = 0; j < size; j++) {
      if (logits[j] != logits[j]) return {logits[j], j};
    }
  }
  return {highest, std::find(logits, logits + size, highest) - logits};
}

void weigh(const Row &row, double temperature, double min_p) {
  const Vec top = broadcast(row.highest), scale = broadcast(float(temperature));
  const float least = float(min_p);
  for (long i = 0; i < row.size; i += LANES) {
    float exponents[LANES], weights[LANES];
    const Vec exponent = (load_part(row.logits, i, row.size) - top) / scale;
    store(exponents, exponent);
    store(weights, exp(exponent));
    const long count = std::min<long>(LANES, row.size - i);
    for (long j = 0; j < count; j++) {
      row.weights[size_t(i + j)] = exponents[j] < NEGLIGIBLE || weights[j] < least ? 0.0f : weights[j];
    }
  }
}

// The k-th highest logit.
float floor_of_top_k(const Row &row, long k) {
  std::vector<long> counts(BUCKETS);
  for (long i = 0; i < row.size; i++) counts[size_t(row.bucket(i))]++;
  int last = 0;
  for (; k > counts[size_t(last)]; last++) k -= counts[size_t(last)];
  std::vector<float> members;
  for (long i = 0; i < row.size; i++) {
    if (row.bucket(i) == last) members.push_back(row.logits[i]);
  }
  std::nth_element(members.begin(), members.begin() + (k - 1), members.end(), std::greater<float>());
  return members[size_t(k - 1)];
}

// The lowest logit among the fewest most probable tokens whose weights come to a share p of all.
float floor_of_top_p(const Row &row, double p) {
  std::vector<double> sums(BUCKETS);
  for (long i = 0; i < row.size; i++) sums[size_t(row.bucket(i))] += row.weights[size_t(i)];
  double needed = 0.0;
  for (double part : sums) needed += part;
  needed *= p;
  int last = 0;
  for (; last < BUCKETS - 1 && needed > sums[size_t(last)]; last++) needed -= sums[size_t(last)];
  std::vector<std::pair<float, float>> members;
  for (long i = 0; i < row.size; i++) {
    if (row.bucket(i) == last && row.weights[size_t(i)] > 0.0f)
      members.emplace_back(row.logits[i], row.weights[size_t(i)]);
  }
  std::sort(members.begin(), members.end(), std::greater<std::pair<float, float>>());
  for (const auto &[logit, weight] : members) {
    needed -= weight;
    if (needed <= 0.0) return logit;
  }
  return members.empty() ? -std::numeric_limits<float>::infinity() : members.back().first;
}

void drop_below(const Row &row, float floor) {
  for (long i = 0; i < row.size; i++) row.weights[size_t(i)] = row.logits[i] < floor ? 0.0f : row.weights[size_t(i)];
}

double sum_of(const float *weights, long count) {
  double lanes[LANES] = {};
  for (long i = 0; i < count; i++) lanes[i % LANES] += weights[i];
  double total = 0.0;
  for (double lane : lanes) total += lane;
  return total;
}

// The first token at which the weights so far come to more than a fraction of all.
long draw(const Row &row, double fraction) {
  std::vector<double> runs;
  double total = 0.0;
  for (long i = 0; i < row.size; i += RUN) {
    runs.push_back(sum_of(row.weights.data() + i, std::min(RUN, row.size - i)));
    total += runs.back();
  }
  double wanted = fraction * total;
  size_t run = 0;
  while (run + 1 < runs.size() && wanted >= runs[run]) wanted -= runs[run++];
  const long begin = long(run) * RUN, end = std::min(begin + RUN, row.size);
  long last = -1;
  for (long i = begin; i < end; i++) {
    if (row.weights[size_t(i)] == 0.0f) continue;
    last = i;
    wanted -= row.weights[size_t(i)];
    if (wanted < 0.0) return i;
  }
  for (long i = begin; last < 0; i--) {  // rounding has passed the last run with any weight
    if (row.weights[size_t(i)] > 0.0f) last = i;
  }
  return last;
}

void choose(const Choice &job, const float *logits, long r) {
  const auto [highest, token] = find_highest(logits, job.size);
  job.best[r] = highest;
  job.tokens[r] = int32_t(token);
  if (job.temperature[r] == 0.0 || !(highest - highest == 0.0f)) return;
  static thread_local std::vector<float> weights;
  weights.resize(size_t(job.size));
  const Row row{logits, job.size, highest, weights};
  weigh(row, job.temperature[r], job.min_p[r]);
  if (job.top_k[r] > 0 && job.top_k[r] < job.size) drop_below(row, floor_of_top_k(row, long(job.top_k[r])));
  if (job.top_p[r] < 1.0) drop_below(row, floor_of_top_p(row, job.top_p[r]));
  job.tokens[r] = int32_t(draw(row, double(job.words[r] >> 11) * 0x1p-53));
}

}  // namespace
}  // namespace actorlm

using namespace actorlm;

ACTORLM_API void choose_tokens(Pool *pool, const float *logits, const double *temperature, const double *min_p,
                               const double *top_p, const int64_t *top_k, const uint64_t *words, int32_t *tokens,
                               float *best, long rows, long size) {
  const Choice job{temperature, min_p, top_p, top_k, words, tokens, best, rows, size};
  pool->run(rows, [&](long row) { choose(job, logits + row * size, row); });
}
