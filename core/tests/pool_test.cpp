// The hosts of parallel.h: every index exactly once, whoever calls, from wherever, and after a
// fork.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "parallel.h"

#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN
#endif
// TSan knows neither libgomp's barriers nor threads started in the child of a threaded process.
#if !defined(_WIN32) && !defined(UNDER_TSAN)
#define WITH_FORK_AND_OPENMP
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

namespace {

using bs::Host;

int passed = 0;
int failed = 0;
bool forks = true;

void check(bool good, const char* what, long a = 0, long b = 0) {
  ++(good ? passed : failed);
  if (!good) std::printf("FAILED %s (%ld, %ld)\n", what, a, b);
}

// Runs any callable on a host.
template <class Body>
void run(const Host& host, int tasks, Body body) {
  host.run(
      host.context, tasks, [](void* argument, int i) { (*static_cast<Body*>(argument))(i); },
      &body);
}

// The cells are not atomic: a sanitizer sees it if two tasks got one index, or if the end of a run
// is not the end of its tasks.
bool exactly_once(const Host& host, int tasks) {
  std::vector<int> calls(static_cast<size_t>(tasks));
  run(host, tasks, [&](int i) { ++calls.at(static_cast<size_t>(i)); });
  for (const int n : calls) {
    if (n != 1) return false;
  }
  return true;
}

void test_sizes(Host (*make)(int), const char* name) {
  for (const int threads : {0, 1, 2, 3, 8}) {
    const Host host = make(threads);
    check(host.threads >= 1, name, threads);
    for (const int tasks : {0, 1, 2, 3, 7, 64, 1000, 10007}) {
      check(exactly_once(host, tasks), name, threads, tasks);
    }
  }
}

void test_thread_limit() {
  check(exactly_once(bs::pool_host(8), 100), "eight threads", 8);
  for (const int threads : {1, 2, 3}) {
    check(bs::pool_host(threads).threads == threads, "threads as asked for", threads);
    std::mutex lock;
    std::set<std::thread::id> seen;
    run(bs::pool_host(threads), 200, [&](int) {
      std::this_thread::yield();
      const std::lock_guard guard(lock);
      seen.insert(std::this_thread::get_id());
    });
    check(static_cast<int>(seen.size()) <= threads, "no more threads than asked for", threads);
  }
}

// Both tasks wait for each other: the run ends only if they are at once on two threads.
void test_parallel(const Host& host, const char* name) {
  std::atomic<int> arrived{0};
  run(host, 2, [&](int) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  });
  check(arrived == 2, name);
}

void test_tiny_runs() {
  const Host host = bs::pool_host(2);
  long sums[2] = {0, 0};
  for (int n = 0; n < 100000; ++n) run(host, 2, [&](int i) { sums[i] += i + 1; });
  check(sums[0] == 100000 && sums[1] == 200000, "tiny runs", sums[0], sums[1]);
}

void test_parked_workers() {
  for (int n = 0; n < 50; ++n) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    check(exactly_once(bs::pool_host(3), 5), "after a pause", n);
  }
}

void test_concurrent_callers() {
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&wrong, c] {
      for (int n = 0; n < 2000; ++n) wrong += !exactly_once(bs::pool_host(2 + c), 1 + (n + c) % 9);
    });
  }
  for (std::thread& caller : callers) caller.join();
  check(wrong == 0, "concurrent callers", wrong);
}

void test_nested(Host (*make)(int), const char* name) {
  std::atomic<int> calls{0};
  run(make(3), 10, [&](int) { run(make(3), 10, [&](int) { ++calls; }); });
  check(calls == 100, name, calls);
}

#ifdef WITH_FORK_AND_OPENMP

// True if `body` holds in a forked child. A child that hangs is killed by its alarm.
template <class Body>
bool holds_in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(body() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool child_works() { return exactly_once(bs::pool_host(3), 100); }

void test_fork() {
  check(child_works(), "before the fork");
  check(holds_in_child(child_works), "child of an idle parent");
  check(holds_in_child([] { return child_works() && holds_in_child(child_works); }), "grandchild");
  check(child_works(), "parent after forks");

  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::thread busy([&] {
    while (!stop) wrong += !exactly_once(bs::pool_host(3), 50);
  });
  for (int n = 0; n < 40; ++n) check(holds_in_child(child_works), "fork while busy", n);
  stop = true;
  busy.join();
  check(wrong == 0, "parent while it forks", wrong);
}

void test_environment() {
  const auto default_is = [](const char* text, int threads) {
    return holds_in_child([&] {  // where the pool is new
      setenv("BLOCKSCALE_NUM_THREADS", text, 1);
      return bs::pool_host(0).threads == threads;
    });
  };
  unsetenv("BLOCKSCALE_NUM_THREADS");
  const int usual = bs::pool_host(0).threads;
  check(default_is("3", 3), "BLOCKSCALE_NUM_THREADS=3");
  check(default_is("1", 1), "BLOCKSCALE_NUM_THREADS=1");
  for (const char* text : {"", "0", "-2", "two", "2 threads"}) {
    check(default_is(text, usual), "BLOCKSCALE_NUM_THREADS unusable", usual);
  }
}

void test_openmp() {
  check(!bs::openmp_found(), "no runtime is loaded");
  check(bs::openmp_host(2).threads == 1, "serial without a runtime");
  void* library = dlopen("libgomp.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!library) {
    std::printf("no libgomp here: openmp_host is not tested\n");
    return;
  }
  check(bs::openmp_found(), "a runtime loaded later is found");
  check(bs::openmp_host(0).threads >= 1, "as many threads as it says");
  test_sizes(bs::openmp_host, "openmp");
  test_parallel(bs::openmp_host(2), "openmp: two threads at once");
  test_nested(bs::openmp_host, "openmp: nested");
  run(bs::openmp_host(2), 2, [](int) {
    if (bs::openmp_host(2).threads != 1) std::abort();
  });
  const Host host = bs::openmp_host(2);
  if (forks)
    check(holds_in_child([&] { return exactly_once(host, 100); }), "openmp: child of a fork");
  // A team smaller than asked for.
  reinterpret_cast<void (*)(int)>(dlsym(library, "omp_set_dynamic"))(1);
  check(exactly_once(bs::openmp_host(64), 1000), "openmp: dynamic teams");
}

#endif

}  // namespace

// --no-forks: for emulators that cannot fork a process with threads.
int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  forks = argc < 2 || std::strcmp(argv[1], "--no-forks") != 0;
  test_sizes([](int) { return bs::serial_host(); }, "serial");
  test_sizes(bs::pool_host, "pool");
  test_thread_limit();
  test_parallel(bs::pool_host(2), "pool: two threads at once");
  test_tiny_runs();
  test_parked_workers();
  test_concurrent_callers();
  test_nested(bs::pool_host, "pool: nested");
#ifdef WITH_FORK_AND_OPENMP
  if (forks) {
    test_fork();
    test_environment();
  } else {
    std::printf("forks are not tested\n");
  }
  test_openmp();
#endif
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
