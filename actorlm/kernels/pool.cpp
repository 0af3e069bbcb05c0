#include "pool.h"

#include <chrono>

#include "abi.h"
#include "pause.h"

namespace actorlm {
namespace {

constexpr auto SPIN_TIME = std::chrono::microseconds(100);

// Until `done`, or for SPIN_TIME; says whether it is done.
template <class Condition>
bool spin_until(Condition done) {
  const auto end = std::chrono::steady_clock::now() + SPIN_TIME;
  do {
    for (int i = 0; i < 16; i++) {
      if (done()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

uint32_t left(uint64_t state) { return uint32_t(state); }

}  // namespace

Pool::Pool(int threads) {
  for (int i = 1; i < threads; i++) threads_.emplace_back(&Pool::serve, this);
}

Pool::~Pool() {
  closed_ = true;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    state_ += uint64_t(1) << 32;
  }
  awake_.notify_all();
  for (auto &thread : threads_) thread.join();
}

void Pool::run_shared(uint32_t chunks, Call call, const void *job) {
  call_.store(call, std::memory_order_relaxed);
  job_.store(job, std::memory_order_relaxed);
  unfinished_.store(chunks, std::memory_order_relaxed);
  const uint64_t number = (state_.load(std::memory_order_relaxed) >> 32) + 1;
  state_.store((number << 32) | chunks);
  if (sleepers_.load() > 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    awake_.notify_all();
  }
  while (work_on(state_.load(std::memory_order_acquire))) {
  }
  const auto finished = [&] { return unfinished_.load(std::memory_order_acquire) == 0; };
  while (!spin_until(finished)) std::this_thread::yield();
}

// Takes one chunk and runs it; false if there is none.
bool Pool::work_on(uint64_t seen) {
  if (left(seen) == 0) return false;
  const Call call = call_.load(std::memory_order_relaxed);
  const void *job = job_.load(std::memory_order_relaxed);
  if (state_.compare_exchange_strong(seen, seen - 1, std::memory_order_acq_rel)) {
    call(job, long(left(seen)) - 1);
    unfinished_.fetch_sub(1, std::memory_order_release);
  }
  return true;
}

void Pool::serve() {
  uint64_t seen = state_.load(std::memory_order_acquire);
  while (!closed_.load(std::memory_order_relaxed)) {
    seen = work_on(seen) ? state_.load(std::memory_order_acquire) : wait_for_other(seen);
  }
}

uint64_t Pool::wait_for_other(uint64_t seen) {
  const auto changed = [&] { return state_.load() != seen; };
  if (spin_until(changed)) return state_.load(std::memory_order_acquire);
  std::unique_lock<std::mutex> lock(mutex_);
  sleepers_++;
  awake_.wait(lock, changed);
  sleepers_--;
  return state_.load(std::memory_order_acquire);
}

}  // namespace actorlm

using actorlm::Pool;

ACTORLM_API Pool *pool_start(int threads) { return new Pool(threads); }

ACTORLM_API void pool_stop(Pool *pool) { delete pool; }
