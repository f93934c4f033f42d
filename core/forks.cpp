#include "forks.h"

#include <atomic>

#ifndef _WIN32
#include <pthread.h>
#endif

namespace bs {
namespace {

std::atomic<unsigned> count{0};

#ifndef _WIN32
// Registered when the library is loaded, so that no fork after the first thread can be missed. The
// handler only counts: in the child of a threaded process a lock may be held by nobody.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { ++count; });
#endif

}  // namespace

unsigned forks() noexcept { return count.load(std::memory_order_relaxed); }

}  // namespace bs
