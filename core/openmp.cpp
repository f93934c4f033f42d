#include "openmp.h"

#ifdef _WIN32

namespace bs {

// torch's wheels hold two runtimes there: its parallel regions run in vcomp140, its omp_* calls in
// libiomp5md (pytorch issue 176091), so that neither tells what the other does.
const OpenMP* loaded_openmp() noexcept { return nullptr; }

}  // namespace bs

#else

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <new>

#ifdef __APPLE__
#include <mach-o/dyld.h>
#else
#include <link.h>
#endif

namespace bs {
namespace {

template <class Function>
bool look_up(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

bool look_up(void* library, OpenMP& runtime) {
  runtime.survives_fork = dlsym(library, "__kmpc_fork_call") != nullptr;
  return look_up(library, "GOMP_parallel", runtime.parallel) &&
         look_up(library, "omp_get_max_threads", runtime.max_threads) &&
         look_up(library, "omp_in_parallel", runtime.in_parallel);
}

bool is_torch(const char* path) {
  const char* slash = path ? std::strrchr(path, '/') : nullptr;
  return slash && std::strncmp(slash, "/libtorch_cpu.", 14) == 0;
}

// A handle of torch's library if it is in the process. The path stays valid: torch is never
// unloaded.
void* loaded_torch() {
  const char* path = nullptr;
#ifdef __APPLE__
  for (uint32_t i = 0; i < _dyld_image_count() && !path; ++i) {
    if (is_torch(_dyld_get_image_name(i))) path = _dyld_get_image_name(i);
  }
#else
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* found) -> int {
        if (!is_torch(object->dlpi_name)) return 0;
        *static_cast<const char**>(found) = object->dlpi_name;
        return 1;
      },
      &path);
#endif
  return path ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
}

// The global scope first: what it holds is what torch's own calls are bound to, preloaded runtimes
// included. torch puts its runtime there; where it did not, what torch depends on is its runtime.
// No other library's own libgomp will do: torch's threads would be a second set beside it.
bool find(OpenMP& runtime) {
  if (look_up(RTLD_DEFAULT, runtime)) return true;
  void* torch = loaded_torch();
  if (!torch) return false;
  const bool found = look_up(torch, runtime);
  dlclose(torch);
  return found;
}

std::atomic<const OpenMP*> known{nullptr};

}  // namespace

const OpenMP* loaded_openmp() noexcept {
  if (const OpenMP* runtime = known.load(std::memory_order_acquire)) return runtime;
  OpenMP candidate;
  if (!find(candidate)) return nullptr;
  std::unique_ptr<OpenMP> runtime(new (std::nothrow) OpenMP(candidate));
  const OpenMP* before = nullptr;
  if (!runtime || !known.compare_exchange_strong(before, runtime.get())) return before;
  return runtime.release();
}

}  // namespace bs

#endif
