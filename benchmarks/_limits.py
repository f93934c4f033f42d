"""The machine's own limits: copies with cached and with non-temporal stores."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_SOURCE = """
#include <stddef.h>
typedef long long line __attribute__((vector_size(64), aligned(64)));
void copy(void* to, const void* from, size_t bytes) {
  line* y = to;
  const line* x = from;
  for (size_t i = 0; i < bytes / 64; ++i) __builtin_nontemporal_store(x[i], y + i);
}
"""
_X86 = """
#include <immintrin.h>
#include <stddef.h>
void copy(void* to, const void* from, size_t bytes) {
  __m256i* y = to;
  const __m256i* x = from;
  for (size_t i = 0; i < bytes / 32; ++i) _mm256_stream_si256(y + i, _mm256_loadu_si256(x + i));
  _mm_sfence();
}
"""


def aligned(count: int, dtype: Any = np.float32) -> Array:
    """Touched memory that starts at a page."""
    dtype = np.dtype(dtype)
    room = np.zeros(count * dtype.itemsize + 4096, np.uint8)
    start = -room.ctypes.data % 4096
    found = room[start : start + count * dtype.itemsize].view(dtype)
    found.fill(0)
    return found


def memcpy(to: Array, source: Array) -> Callable[[], object]:
    """The C library's; it takes non-temporal stores by itself when the copy is large."""
    arguments = to.ctypes.data, source.ctypes.data, source.nbytes
    return lambda: ctypes.memmove(*arguments)


def streaming_copy(to: Array, source: Array) -> Callable[[], object] | None:
    """A plain loop of non-temporal stores, one thread; None where no compiler is at hand."""
    copy = _compiled()
    if copy is None:
        return None
    arguments = to.ctypes.data, source.ctypes.data, source.nbytes
    return lambda: copy(*arguments)


@functools.cache
def _compiled() -> Callable[..., object] | None:
    """x86-64 with AVX by intrinsics, elsewhere by clang's builtin, which GCC does not have."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "copy.so"
        for source, flags in ((_X86, ["-mavx2"]), (_SOURCE, [])):
            (Path(folder) / "copy.c").write_text(source)
            command = [compiler, "-O3", "-shared", "-fPIC", *flags, "-o", library, Path(folder) / "copy.c"]
            if subprocess.run(command, capture_output=True).returncode == 0:
                function = ctypes.CDLL(str(library)).copy
                function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
                function.restype = None
                return function
    return None
