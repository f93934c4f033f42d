// Where threads come from. Every native entry runs on the parallel-for of its host: torch's loaded
// OpenMP runtime, ONNX Runtime's or ExecuTorch's pool, and our own pool only where there is no
// host.
#pragma once

namespace bs {

using Task = void (*)(void* argument, int index);

struct Host {
  // Calls task(argument, i) once for every i in [0, tasks), perhaps at once, and returns when all
  // have ended. A task never throws.
  void (*run)(void* context, int tasks, Task task, void* argument);
  void* context;
  int threads;  // how many tasks it pays to make
};

Host serial_host();

// The own parking, fork-safe pool. threads < 1: BLOCKSCALE_NUM_THREADS, or as many as the process
// may use. One run at a time: who comes while it is busy, or from within a task, runs serially.
Host pool_host(int threads);

// The OpenMP runtime that is already loaded in this process (torch's), never a second copy.
// threads < 1: as many as it says. Inside a parallel region, or where there is none: serial.
// In a forked child that libgomp would leave hanging the own pool takes its place.
Host openmp_host(int threads);

// True if such a runtime was found.
bool openmp_found();

}  // namespace bs
