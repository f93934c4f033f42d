"""The array functions that the reference codec needs, and those of numpy.

`codec.py` is written once against `Arrays`; `runtime.torch_arrays` offers the same names over torch,
so that the definition also runs on other devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

Array = Any  # an array of whatever library the functions below belong to


class Arrays(Protocol):
    """Every function gives a new array; beside them the codec uses operators, `reshape` and slices."""

    def where(self, condition: Array, a: Array, b: Array, /) -> Array: ...
    def floor(self, x: Array, /) -> Array: ...
    def rint(self, x: Array, /) -> Array: ...
    def abs(self, x: Array, /) -> Array: ...
    def copysign(self, x: Array, sign: Array, /) -> Array: ...
    def isfinite(self, x: Array, /) -> Array: ...
    def isnan(self, x: Array, /) -> Array: ...
    def minimum(self, a: Array, b: Array, /) -> Array: ...
    def maximum(self, a: Array, b: Array, /) -> Array: ...
    def zeros_like(self, x: Array, /) -> Array: ...
    def f64(self, x: Array) -> Array: ...
    def f32(self, x: Array) -> Array: ...
    def i64(self, x: Array) -> Array: ...
    def cast(self, x: Array, name: str) -> Array: ...
    def frexp(self, x: Array) -> tuple[Array, Array]: ...
    def ldexp(self, x: Array, exponent: Array) -> Array: ...
    def divide(self, a: Array, b: Array) -> Array: ...
    def multiply(self, a: Array, b: Array) -> Array: ...
    def amax(self, x: Array, axis: int) -> Array: ...
    def pad(self, x: Array, after: Sequence[int]) -> Array: ...
    def transpose(self, x: Array, axes: Sequence[int]) -> Array: ...
    def repeat(self, x: Array, times: int, axis: int) -> Array: ...
    def arange(self, n: int, like: Array) -> Array: ...
    def full(self, shape: Sequence[int], value: float, like: Array) -> Array: ...
    def table(self, values: Any, like: Array) -> Array: ...
    def take(self, table: Array, index: Array) -> Array: ...


class NumpyArrays:
    where = staticmethod(np.where)
    floor = staticmethod(np.floor)
    rint = staticmethod(np.rint)
    abs = staticmethod(np.abs)
    copysign = staticmethod(np.copysign)
    isfinite = staticmethod(np.isfinite)
    isnan = staticmethod(np.isnan)
    minimum = staticmethod(np.minimum)
    maximum = staticmethod(np.maximum)
    zeros_like = staticmethod(np.zeros_like)

    def f64(self, x: Array) -> Array:
        return np.asarray(x).astype(np.float64)

    def f32(self, x: Array) -> Array:
        """Round to float32 (half to even; overflow becomes Inf)."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return np.asarray(x).astype(np.float32)

    def i64(self, x: Array) -> Array:
        """Truncate finite values to int64."""
        return np.asarray(x).astype(np.int64)

    def cast(self, x: Array, name: str) -> Array:
        """To the tensor format `name` (f32, bf16, f16), half to even."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return np.asarray(x).astype(TENSOR_DTYPES[name])

    def frexp(self, x: Array) -> tuple[Array, Array]:
        mantissa, exponent = np.frexp(x)
        return mantissa, exponent.astype(np.int64)

    def ldexp(self, x: Array, exponent: Array) -> Array:
        return np.ldexp(x, np.asarray(exponent).astype(np.int32))

    def divide(self, a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(np.divide(a, b))

    def multiply(self, a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(np.multiply(a, b))

    def amax(self, x: Array, axis: int) -> Array:
        """Maximum along an axis; 0 where it is empty. Values are never below 0 or NaN here."""
        return np.max(x, axis=axis, initial=0)

    def pad(self, x: Array, after: Sequence[int]) -> Array:
        return np.pad(x, [(0, n) for n in after])

    def transpose(self, x: Array, axes: Sequence[int]) -> Array:
        return np.transpose(x, axes)

    def repeat(self, x: Array, times: int, axis: int) -> Array:
        return np.repeat(x, times, axis)

    def arange(self, n: int, like: Array) -> Array:
        return np.arange(n, dtype=np.int64)

    def full(self, shape: Sequence[int], value: float, like: Array) -> Array:
        return np.full(tuple(shape), value, dtype=np.float64)

    def table(self, values: Any, like: Array) -> Array:
        return np.asarray(values, dtype=np.float64)

    def take(self, table: Array, index: Array) -> Array:
        return table[index]


def _tensor_dtypes() -> dict[str, np.dtype[Any]]:
    import ml_dtypes

    return {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16),
            "bf16": np.dtype(ml_dtypes.bfloat16)}  # fmt: skip


TENSOR_DTYPES = _tensor_dtypes()
NUMPY = NumpyArrays()
