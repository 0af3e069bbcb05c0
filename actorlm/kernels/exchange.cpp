// Sums and exchanges between processes of one host, through memory that all of them map.
//
// Each rank has two slots and a counter of rounds. In a round a rank fills its slot, raises its counter, waits until
// all counters are as high, and reads the slots of all. Rounds take the two slots of a rank in turn, which suffices:
// nobody begins a round before all have begun the one before it, and so have read the one before that.
//
// Sums are made in the order of ranks, by every rank for itself: all hold the same bits. A wait ends with
// the process of the rank that it is for, or at a deadline; after that this and all later operations do nothing, and
// `exchange_missing` tells who did not come.
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "abi.h"
#include "pause.h"
#include "pool.h"
#include "simd.h"

namespace actorlm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int SPINS = 400;
constexpr auto YIELD_TIME = std::chrono::milliseconds(2);  // of waiting, before it sleeps between looks
constexpr timespec NAP = {0, 50'000};
constexpr long FLOATS_A_CHUNK = 16'384;

struct alignas(LINE) Counter {
  std::atomic<uint64_t> rounds;
  std::atomic<pid_t> process;  // 0 until the rank opens its end
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "counters are shared by processes");

// Another process, seen through a descriptor, so that one that has ended is not taken for one with the same number.
class Process {
 public:
  explicit Process(pid_t pid) {
#ifdef SYS_pidfd_open  // elsewhere a wait ends at its deadline
    if (pid != 0) descriptor_ = int(syscall(SYS_pidfd_open, pid, 0));
    was_gone_ = pid != 0 && descriptor_ < 0 && errno == ESRCH;
#endif
  }
  ~Process() {
    if (descriptor_ >= 0) close(descriptor_);
  }

  bool has_ended() const {
    pollfd look = {descriptor_, POLLIN, 0};
    return was_gone_ || (descriptor_ >= 0 && poll(&look, 1, 0) > 0);
  }

 private:
  int descriptor_ = -1;
  bool was_gone_ = false;
};

}  // namespace

struct Exchange {
  char *memory;
  int size, rank;
  long slot_bytes;
  std::chrono::duration<double> patience;
  uint64_t round = 0;
  int missing = -1;

  Counter &counter(int of) { return ((Counter *)memory)[of]; }

  char *slot(int of) { return memory + size * sizeof(Counter) + (2 * of + long(round & 1)) * slot_bytes; }

  // One round. `fill` writes to this rank's slot, and after all have, `read` reads any.
  template <class Fill, class Read>
  void run(const Fill &fill, const Read &read) {
    if (missing >= 0) return;
    round++;
    fill(slot(rank));
    counter(rank).rounds.store(round, std::memory_order_release);
    for (int other = 0; other < size; other++) {
      if (!wait_for(other)) {
        missing = other;
        return;
      }
    }
    read();
  }

 private:
  bool has_come(int other) { return counter(other).rounds.load(std::memory_order_acquire) >= round; }

  bool wait_for(int other) {
    for (int i = 0; i < SPINS; i++) {
      if (has_come(other)) return true;
      pause();
    }
    const auto began = Clock::now();
    while (Clock::now() - began < YIELD_TIME) {
      if (has_come(other)) return true;
      sched_yield();
    }
    const Process process(counter(other).process.load(std::memory_order_relaxed));
    while (!has_come(other)) {
      if (Clock::now() - began > patience) return false;
      if (process.has_ended()) return has_come(other);
      nanosleep(&NAP, nullptr);
    }
    return true;
  }
};

namespace {

// total += first + second + ..., in the order of the slots.
void add_slots(Exchange *exchange, float *total, long begin, long end) {
  for (long i = begin; i < end; i += LANES) {
    Vec sum = load_part((const float *)exchange->slot(0), i, end);
    for (int other = 1; other < exchange->size; other++) {
      sum = sum + load_part((const float *)exchange->slot(other), i, end);
    }
    store_part(total, load_part(total, i, end) + sum, i, end);
  }
}

}  // namespace
}  // namespace actorlm

using namespace actorlm;

ACTORLM_API long exchange_bytes(int size, long slot_bytes) { return size * (long(sizeof(Counter)) + 2 * slot_bytes); }

// `memory` has so many bytes, zeros at first, that all ranks see. A slot's bytes are a multiple of 64.
ACTORLM_API Exchange *exchange_open(void *memory, int size, int rank, long slot_bytes, double patience_s) {
  auto *exchange = new Exchange{(char *)memory, size, rank, slot_bytes, std::chrono::duration<double>(patience_s)};
  exchange->counter(rank).process.store(getpid(), std::memory_order_relaxed);
  return exchange;
}

ACTORLM_API void exchange_close(Exchange *exchange) { delete exchange; }

// The first rank that did not come to a round in time, or -1.
ACTORLM_API int exchange_missing(Exchange *exchange) { return exchange->missing; }

// Adds to `total` the sum of all ranks' `part`, both of `count` numbers.
ACTORLM_API void add_reduced(Pool *pool, Exchange *exchange, const float *part, float *total, long count) {
  const long most = exchange->slot_bytes / long(sizeof(float));
  for (long done = 0; done < count; done += most) {
    const long now = std::min(most, count - done), chunks = (now + FLOATS_A_CHUNK - 1) / FLOATS_A_CHUNK;
    const auto chunked = [&](const auto &function) {
      pool->run(chunks,
                [&](long chunk) { function(chunk * FLOATS_A_CHUNK, std::min(now, (chunk + 1) * FLOATS_A_CHUNK)); });
    };
    exchange->run(
        [&](char *slot) {
          chunked([&](long begin, long end) {
            std::memcpy((float *)slot + begin, part + done + begin, (end - begin) * sizeof(float));
          });
        },
        [&] { chunked([&](long begin, long end) { add_slots(exchange, total + done, begin, end); }); });
  }
}

// `all` gets the `bytes` that each rank has, in the order of ranks; a rank that passes none reads none.
ACTORLM_API void gather_shares(Exchange *exchange, const char *mine, char *all, long bytes) {
  for (long done = 0; done < bytes; done += exchange->slot_bytes) {
    const long now = std::min(exchange->slot_bytes, bytes - done);
    exchange->run([&](char *slot) { std::memcpy(slot, mine + done, now); },
                  [&] {
                    for (int other = 0; all && other < exchange->size; other++) {
                      std::memcpy(all + other * bytes + done, exchange->slot(other), now);
                    }
                  });
  }
}

// All ranks get the `bytes` that rank 0 has.
ACTORLM_API void spread(Exchange *exchange, char *data, long bytes) {
  for (long done = 0; done < bytes; done += exchange->slot_bytes) {
    const long now = std::min(exchange->slot_bytes, bytes - done);
    exchange->run(
        [&](char *slot) {
          if (exchange->rank == 0) std::memcpy(slot, data + done, now);
        },
        [&] {
          if (exchange->rank > 0) std::memcpy(data + done, exchange->slot(0), now);
        });
  }
}
