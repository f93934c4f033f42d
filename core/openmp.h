// The OpenMP runtime that somebody else, torch, has loaded into this process.
#pragma once

namespace bs {

struct OpenMP {
  // The entry that gcc compiles `#pragma omp parallel` to; LLVM's and Intel's runtimes export it
  // too.
  void (*parallel)(void (*work)(void*), void* argument, unsigned threads, unsigned flags);
  int (*max_threads)();
  int (*in_parallel)();
  // libgomp's next parallel region in a forked child waits for ever for the parent's threads
  // (gcc bug 60035); LLVM's and Intel's runtimes start anew.
  bool survives_fork;
};

// nullptr where none is loaded, and on Windows. What is found is kept, what is not is looked for
// again: torch may be imported after us.
const OpenMP* loaded_openmp() noexcept;

}  // namespace bs
