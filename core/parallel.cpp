#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "forks.h"
#include "openmp.h"

namespace bs {
namespace {

void run_serial(void*, int tasks, Task task, void* argument) noexcept {
  for (int i = 0; i < tasks; ++i) task(argument, i);
}

struct Region {
  Task task;
  void* argument;
  int tasks;
  std::atomic<int64_t> next{0};
};

// What each thread of a team does. The runtime may give a smaller team than was asked for (nested,
// dynamic, at a limit), so the indices are handed out, not computed from the thread's number.
void work(void* argument) noexcept {
  Region& region = *static_cast<Region*>(argument);
  for (;;) {
    const int64_t index = region.next.fetch_add(1, std::memory_order_relaxed);
    if (index >= region.tasks) return;
    region.task(region.argument, static_cast<int>(index));
  }
}

// Asked for at each run, not when the host is made: a host may be kept across a fork, or be used
// inside a region by a task.
void run_openmp(void* context, int tasks, Task task, void* argument) noexcept {
  const OpenMP* openmp = loaded_openmp();
  const int threads = std::min(static_cast<int>(reinterpret_cast<intptr_t>(context)), tasks);
  if (!openmp || threads < 2 || openmp->in_parallel()) {
    return run_serial(nullptr, tasks, task, argument);
  }
  if (forks() != 0 && !openmp->survives_fork) {
    const Host pool = pool_host(threads);
    return pool.run(pool.context, tasks, task, argument);
  }
  Region region{task, argument, tasks};
  openmp->parallel(work, &region, static_cast<unsigned>(threads), 0);
}

}  // namespace

Host serial_host() { return {run_serial, nullptr, 1}; }

Host openmp_host(int threads) {
  const OpenMP* openmp = loaded_openmp();
  if (!openmp || openmp->in_parallel()) return serial_host();
  if (threads < 1) threads = std::max(openmp->max_threads(), 1);
  return {run_openmp, reinterpret_cast<void*>(intptr_t{threads}), threads};
}

bool openmp_found() { return loaded_openmp() != nullptr; }

}  // namespace bs
