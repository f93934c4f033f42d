"""What products can reach on this machine: int8 and bfloat16 dot products, and reading memory.

Compiled where a compiler is at hand; each runs on threads of its own, which leave the GIL.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from _limits import Array, aligned

_SOURCE = r"""
#include <immintrin.h>
#include <stddef.h>
#define TWELVE(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11)
#define DOT8(i) "vpdpbusd %%zmm30, %%zmm31, %%zmm" #i "\n"
#define DOT16(i) "vdpbf16ps %%zmm30, %%zmm31, %%zmm" #i "\n"
#define LOOP(op) \
  __asm__ volatile("1:\n" TWELVE(op) "dec %0\njnz 1b\n" : "+r"(turns) :: "zmm0", "zmm1", "zmm2", "zmm3", \
    "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", "zmm11", "zmm30", "zmm31")
void int8_dots(size_t turns) { LOOP(DOT8); }
void bf16_dots(size_t turns) { LOOP(DOT16); }
int read_all(const char* p, size_t bytes) {
  __m512i s[8] = {0};
  const size_t part = bytes / 4 / 128 * 128;
  for (size_t i = 0; i < part; i += 128)
    for (int k = 0; k < 4; ++k) {
      s[2 * k] = _mm512_xor_si512(s[2 * k], _mm512_loadu_si512(p + k * part + i));
      s[2 * k + 1] = _mm512_xor_si512(s[2 * k + 1], _mm512_loadu_si512(p + k * part + i + 64));
    }
  for (int k = 1; k < 8; ++k) s[0] = _mm512_xor_si512(s[0], s[k]);
  return _mm512_reduce_add_epi32(s[0]);
}
"""
TURNS = 200_000
CACHED, FAR = 8 << 20, 256 << 20


@functools.cache
def _library() -> ctypes.CDLL | None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or "avx512_bf16" not in Path("/proc/cpuinfo").read_text():
        return None
    with tempfile.TemporaryDirectory() as folder:
        library, source = Path(folder) / "peaks.so", Path(folder) / "peaks.c"
        source.write_text(_SOURCE)
        command = [compiler, "-O3", "-funroll-loops", "-mavx512bw", "-mavx512bf16", "-shared", "-fPIC"]
        if subprocess.run([*command, "-o", library, source], capture_output=True).returncode:
            return None
        found = ctypes.CDLL(str(library))
    for name in ("int8_dots", "bf16_dots"):
        getattr(found, name).argtypes = [ctypes.c_size_t]
    found.read_all.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return found


def _best(threads: int, repeats: int, calls: list[functools.partial[object]]) -> float:
    """Seconds until all threads are through."""

    def once() -> float:
        gate = threading.Barrier(threads + 1)

        def work(call: functools.partial[object]) -> None:
            gate.wait()
            call()

        workers = [threading.Thread(target=work, args=(call,)) for call in calls]
        for worker in workers:
            worker.start()
        gate.wait()
        start = time.perf_counter()
        for worker in workers:
            worker.join()
        return time.perf_counter() - start

    return min(once() for _ in range(repeats))


def limits(threads: int, repeats: int = 20) -> dict[str, float] | None:
    """GOP/s of int8 and of bfloat16 dot products, GB/s of reading from the cache and from memory."""
    library = _library()
    if library is None:
        return None
    found = {}
    for name, per in (("int8_dots", 128), ("bf16_dots", 64)):
        calls = [functools.partial(getattr(library, name), TURNS) for _ in range(threads)]
        found[name] = 12 * per * TURNS * threads / _best(threads, repeats, calls) / 1e9
    for name, size in (("cache", CACHED), ("memory", FAR)):
        memory: Array = aligned(size, np.uint8)
        part = size // threads
        turns = max(1, (64 << 20) // size)

        def read(at: int, part: int = part, turns: int = turns) -> None:
            for _ in range(turns):
                library.read_all(at, part)

        calls = [functools.partial(read, memory.ctypes.data + i * part) for i in range(threads)]
        found[name] = turns * size / _best(threads, repeats, calls) / 1e9
    return found
