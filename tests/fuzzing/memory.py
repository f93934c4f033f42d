"""Memory that ends at a page that nobody may touch, and begins after bytes that nobody may change."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

CANARY = 0xA5


class Fenced:
    """`content` lies at the very end of readable memory where the system allows it (Linux)."""

    LARGEST = 1 << 20

    def __init__(self, content: bytes) -> None:
        page = mmap.PAGESIZE
        self.size = len(content)
        usable = -(-(self.size + 64) // page) * page
        self._map = mmap.mmap(-1, usable + page)
        self._first = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._slack = usable - self.size
        self._map[:usable] = bytes([CANARY]) * self._slack + content
        self._usable = usable
        _protect(self._first + usable, page, 0)

    @property
    def address(self) -> int:
        return self._first + self._slack

    def content(self) -> memoryview:
        return memoryview(self._map)[self._slack : self._usable]

    def check(self) -> None:
        before = bytes(self._map[: self._slack])
        assert before == bytes([CANARY]) * self._slack, "memory before the first byte was written"


def _protect(address: int, length: int, flags: int) -> None:
    """Elsewhere than on Linux the page stays readable: less is found, nothing breaks."""
    if sys.platform != "linux":
        return
    libc: Any = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(length), flags) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
