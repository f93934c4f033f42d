"""blockscale's compiled core on memory that is there already: no checks, no allocation, threads as told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from blockscale.numerics import native
from blockscale.numerics.layout import bind
from blockscale.numerics.scheme import refined, scheme_named

Array = np.ndarray[Any, np.dtype[Any]]
Run = Callable[[], object]

MX = ("mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2", "mxint8")
OTHERS = ("nvfp4", "int8-channel", "int4-g32")
TYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}


def host_of(threads: int) -> int:
    """torch's OpenMP where it is loaded, as torch.ops.blockscale does."""
    if threads == 1:
        return native.SERIAL
    return native.OPENMP if native.openmp_found() else native.POOL


class Codec:
    """One scheme on the arrays x and y, both [rows, K] and contiguous. What it returns keeps them alive."""

    def __init__(
        self, scheme: str, x: Array, y: Array, *, axis: int | None = None, threads: int = 1,
        host: int | None = None,
    ) -> None:  # fmt: skip
        bound = scheme_named(scheme)
        self.layout = bind(bound if axis is None else refined(bound, axis=axis), x.shape)
        self.x, self.y = x, y
        self._plan = native.plan_of(self.layout)
        self._where = (host_of(threads) if host is None else host), threads
        self._type = {np.dtype(kind): i for i, kind in enumerate(TYPES.values())}[x.dtype]
        self._chosen = native.CoreParams()
        self.codes: Array | None = None

    def fake_quantize(self, given: bool = False) -> Run:
        """Parameters chosen from x, or those of the last quantize."""
        stored = self._room() if given else self._chosen
        source = self.x.ctypes.data, self.x.nbytes, self._type, None
        result = self.y.ctypes.data, self.y.nbytes, None
        call, where = self._plan.fake_quantize, self._where
        if given:
            self._fill(stored)
        return lambda memory=self: call(*source, *result, stored, 0, *where)

    def quantize(self) -> Run:
        """Parameters chosen and written, codes packed."""
        stored, codes = self._room(), self._codes()
        source = self.x.ctypes.data, self.x.nbytes, self._type, None
        call, where, result = self._plan.quantize, self._where, (codes.ctypes.data, codes.nbytes)
        return lambda memory=self: call(*source, *result, stored, 0, *where)

    def dequantize(self) -> Run:
        stored, codes = self._room(), self._codes()
        self._fill(stored)
        source, result = (codes.ctypes.data, codes.nbytes), (self.y.ctypes.data, self.y.nbytes)
        call, where, kind = self._plan.dequantize, self._where, self._type
        return lambda memory=self: call(*source, *result, kind, None, stored, *where)

    def choose_params(self) -> Run:
        stored, call, where = self._room(), self._plan.choose_params, self._where
        source = self.x.ctypes.data, self.x.nbytes, self._type, None
        return lambda memory=self: call(*source, stored, *where)

    def _codes(self) -> Array:
        if self.codes is None:
            self.codes = np.zeros(self.layout.codes_shape, self.layout.numbers.element_format.storage_dtype)
        return self.codes

    def _room(self) -> Any:
        """Room for parameters, kept alive by the object."""
        numbers, stored = self.layout.numbers, native.CoreParams()
        scales = np.zeros(self.layout.scale_shape, native.scale_dtype(numbers))
        stored.scales, stored.scale_bytes = scales.ctypes.data, scales.nbytes
        zeros = np.zeros(self.layout.scale_shape, np.int32) if numbers.zero_point else None
        if zeros is not None:
            stored.zeros, stored.zero_bytes = zeros.ctypes.data, zeros.nbytes
        stored.keep = scales, zeros
        return stored

    def _fill(self, stored: Any) -> None:
        """Choose the parameters and write the codes that they decode."""
        source = self.x.ctypes.data, self.x.nbytes, self._type, None
        codes = self._codes()
        t = self._plan.quantize(*source, codes.ctypes.data, codes.nbytes, stored, 0, *self._where)
        stored.given = True
        if self.layout.numbers.tensor_scale:
            stored.tensor_scale, stored.tensor_scale_given = t, True


def normal(
    rows: int, columns: int = 4096, kind: str = "f32", *, like: Callable[..., Array] = np.zeros
) -> Array:
    """Standard normal numbers; 2^20 of them are repeated, as drawing 256 MiB would take long."""
    drawn = np.random.default_rng(0).standard_normal(min(rows * columns, 1 << 20), np.float32)
    drawn = drawn.astype(TYPES[kind])
    flat = like(rows * columns, TYPES[kind])
    for start in range(0, flat.size, drawn.size):
        flat[start : start + drawn.size] = drawn[: flat.size - start]
    return flat.reshape(rows, columns)
