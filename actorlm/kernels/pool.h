// The threads of the native kernels. One pool serves one thread that calls; that thread works, too.
//
// A job is cut into chunks, and whoever is free takes the next: a thread that the system does not schedule takes none
// and holds nobody up. Between jobs threads spin for some microseconds, so that the next operation of a step finds them
// awake, and then sleep: an idle process costs nothing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace actorlm {

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool &) = delete;
  Pool &operator=(const Pool &) = delete;

  int threads() const { return int(threads_.size()) + 1; }

  // Calls function(chunk) for each chunk from 0 to chunks - 1, in any order and on any thread, and waits for all.
  template <class Function>
  void run(long chunks, const Function &function) {
    if (chunks <= 1 || threads_.empty()) {
      for (long chunk = 0; chunk < chunks; chunk++) function(chunk);
      return;
    }
    run_shared(uint32_t(chunks), [](const void *job, long chunk) { (*(const Function *)job)(chunk); }, &function);
  }

 private:
  using Call = void (*)(const void *job, long chunk);

  void run_shared(uint32_t chunks, Call call, const void *job);
  bool work_on(uint64_t seen);
  void serve();
  uint64_t wait_for_other(uint64_t seen);

  // The number of the job and how many of its chunks nobody has taken yet. In one word, so that a thread that took its
  // time cannot take a chunk of a job other than the one it has read.
  std::atomic<uint64_t> state_{0};
  std::atomic<Call> call_{nullptr};
  std::atomic<const void *> job_{nullptr};
  alignas(64) std::atomic<uint32_t> unfinished_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> closed_{false};
  std::mutex mutex_;
  std::condition_variable awake_;
  std::vector<std::thread> threads_;
};

}  // namespace actorlm
