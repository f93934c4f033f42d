#include "pool.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <new>
#include <thread>

#include "forks.h"

#ifdef __linux__
#include <sched.h>
#endif
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace bs {
namespace {

constexpr int kMostThreads = 1024;

// How long a thread looks on before it parks. A worker spins but shortly: longer would take the
// processor from the threads of others. A caller waits for tasks that are being run, so the end is
// near, and being woken again takes longer (30 us measured): it yields instead to whoever has work.
constexpr std::chrono::microseconds kSpin{4};
constexpr std::chrono::microseconds kYield{100};

int usable_processors() {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

int wanted_threads() {
  const char* text = std::getenv("BLOCKSCALE_NUM_THREADS");
  char* end = nullptr;
  const long wanted = text ? std::strtol(text, &end, 10) : 0;
  if (wanted > 0 && *end == '\0') return static_cast<int>(std::min<long>(wanted, kMostThreads));
  return std::clamp(usable_processors(), 1, kMostThreads);
}

void relax() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__) && !defined(_MSC_VER)
  asm volatile("yield");
#endif
}

// True once `value` is no longer `old`, false when the patience is at its end.
template <class T>
bool changes(const std::atomic<T>& value, T old, std::chrono::microseconds patience,
             void (*idle)()) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  do {
    for (int i = 0; i < 8; ++i) {
      if (value.load(std::memory_order_acquire) != old) return true;
      idle();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

std::atomic<Pool*> the_pool{nullptr};

}  // namespace

// A word of its own for each, so that a run wakes the workers it wants and no others.
struct alignas(64) Pool::Worker {
  std::atomic<uint32_t> invited_to{0};  // the number of a run
};

Pool::Pool() noexcept : born_(forks()), default_threads_(wanted_threads()) {}

Pool* Pool::current() noexcept {
  Pool* pool = the_pool.load(std::memory_order_acquire);
  // After a fork the parent's is left where it is: it may be locked, and its threads are not here.
  while (!pool || pool->born_ != forks()) {
    Pool* fresh = new (std::nothrow) Pool;
    if (!fresh) return nullptr;
    if (the_pool.compare_exchange_strong(pool, fresh)) return fresh;
    delete fresh;
  }
  return pool;
}

void Pool::run(int threads, int tasks, Task task, void* argument) noexcept {
  int helpers = std::min({threads, tasks, kMostThreads}) - 1;
  if (helpers < 1 || busy_.exchange(true, std::memory_order_acquire)) {
    for (int i = 0; i < tasks; ++i) task(argument, i);
    return;
  }
  grow(helpers);
  helpers = std::min(helpers, static_cast<int>(workers_.size()));

  ++run_;
  task_.store(task, std::memory_order_relaxed);
  argument_.store(argument, std::memory_order_relaxed);
  unfinished_.store(tasks, std::memory_order_relaxed);
  ticket_.store(uint64_t{run_} << 32 | static_cast<uint32_t>(tasks), std::memory_order_release);
  for (int i = 0; i < helpers; ++i) {
    workers_[i]->invited_to.store(run_);
    workers_[i]->invited_to.notify_one();
  }
  work(run_);
  await_end();
  busy_.store(false, std::memory_order_release);
}

void Pool::grow(int workers) noexcept {
  while (!exhausted_ && static_cast<int>(workers_.size()) < workers) {
    try {
      auto worker = std::make_unique<Worker>();
      workers_.reserve(workers_.size() + 1);
      std::thread(&Pool::serve, this, std::ref(*worker)).detach();
      workers_.push_back(std::move(worker));
    } catch (const std::exception&) {
      exhausted_ = true;
    }
  }
}

void Pool::serve(Worker& worker) noexcept {
  for (uint32_t run = 0;;) {
    if (!changes(worker.invited_to, run, kSpin, relax)) worker.invited_to.wait(run);
    run = worker.invited_to.load(std::memory_order_acquire);
    work(run);
  }
}

void Pool::work(uint32_t run) noexcept {
  int done = 0;
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (ticket >> 32 == run && static_cast<uint32_t>(ticket) != 0) {
    const Task task = task_.load(std::memory_order_relaxed);
    void* argument = argument_.load(std::memory_order_relaxed);
    if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    task(argument, static_cast<int>(static_cast<uint32_t>(ticket)) - 1);
    ++done;
    ticket = ticket_.load(std::memory_order_acquire);
  }
  // Told once, at the end: until then the run cannot be over, however many tasks were taken.
  if (done > 0 && unfinished_.fetch_sub(done) == done) unfinished_.notify_one();
}

void Pool::await_end() noexcept {
  int left;
  while ((left = unfinished_.load(std::memory_order_acquire)) != 0) {
    if (!changes(unfinished_, left, kSpin, relax) &&
        !changes(unfinished_, left, kYield, std::this_thread::yield)) {
      unfinished_.wait(left);
    }
  }
}

namespace {

void run_pool(void* context, int tasks, Task task, void* argument) noexcept {
  const int threads = static_cast<int>(reinterpret_cast<intptr_t>(context));
  if (Pool* pool = Pool::current()) return pool->run(threads, tasks, task, argument);
  serial_host().run(nullptr, tasks, task, argument);
}

}  // namespace

Host pool_host(int threads) {
  if (threads < 1) {
    const Pool* pool = Pool::current();
    threads = pool ? pool->default_threads() : 1;
  }
  return {run_pool, reinterpret_cast<void*>(intptr_t{threads}), threads};
}

}  // namespace bs
