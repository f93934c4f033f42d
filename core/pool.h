// The own thread pool, for a process without a host that brings threads. Its workers park between
// runs; a run never waits for a worker that has not yet taken up a task, so one that wakes late,
// because the processor is somebody else's, costs nothing but its help.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "parallel.h"

namespace bs {

class Pool {
 public:
  // The pool of this process: a forked child gets its own. nullptr if there is no memory.
  // Neither a pool nor its threads are ever destroyed, so nothing can go wrong when the process
  // exits.
  static Pool* current() noexcept;

  // As Host::run, on at most `threads` threads, the caller's being one. If the pool is busy, with
  // another thread's run or with the one that calls from a task, the caller does all by itself.
  void run(int threads, int tasks, Task task, void* argument) noexcept;

  // BLOCKSCALE_NUM_THREADS, or as many as this process may run on.
  int default_threads() const noexcept { return default_threads_; }

 private:
  struct Worker;

  Pool() noexcept;
  void grow(int workers) noexcept;
  void serve(Worker& worker) noexcept;
  void work(uint32_t run) noexcept;
  void await_end() noexcept;

  const unsigned born_;  // forks() when it was made
  const int default_threads_;

  // Held by the thread whose run it is, who alone touches these.
  std::atomic<bool> busy_{false};
  bool exhausted_ = false;  // the system gives no more threads
  uint32_t run_ = 0;
  std::vector<std::unique_ptr<Worker>> workers_;

  // The number of the run above, how many of its tasks nobody has taken yet below: a task is taken
  // by counting down, which fails if the run is over. Hence what is read of a run before is that
  // run's.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  std::atomic<Task> task_{nullptr};
  std::atomic<void*> argument_{nullptr};
  alignas(64) std::atomic<int> unfinished_{0};
};

}  // namespace bs
