"""Data for observers, and what they make of it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from blockscale.numerics.arrays import TENSOR_DTYPES
from blockscale.numerics.layout import Layout
from blockscale.numerics.observers import observer
from blockscale.numerics.scheme import Scheme
from conformance.data import assert_same

Array = Any
F32 = np.float32
TINY, LEAST, LARGEST = F32(2.0**-126), F32(2.0**-149), np.finfo(F32).max


def seen(method: str, where: Layout | Scheme, *batches: Array, **options: Any) -> Any:
    o = observer(method, where, name="x", **options)
    for x in batches:
        o.update(x)
    return o


def params(method: str, where: Layout | Scheme, *batches: Array, **options: Any) -> Any:
    return seen(method, where, *batches, **options).finish()


def assert_same_params(ours: Any, theirs: Any) -> None:
    for field in ("scales", "zero_points", "tensor_scale"):
        a, b = getattr(ours, field), getattr(theirs, field)
        assert (a is None) == (b is None), field
        if a is not None:
            assert a.dtype == b.dtype, field
            assert_same(a, b, message=field)


def data(kind: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    r = np.random.default_rng(seed)
    x = r.standard_normal(shape)
    with np.errstate(over="ignore"):
        return {
            "normal": lambda: x,
            "positive": lambda: np.abs(x) + 1,
            "negative": lambda: -np.abs(x) - 1,
            "relu": lambda: np.maximum(x, 0),
            "heavy": lambda: x * np.exp2(r.normal(0, 6, shape)),
            "zero": lambda: x * 0,
            "constant": lambda: x * 0 - 2.5,
            "subnormal": lambda: r.integers(-9, 9, shape) * 2.0**-149,
            "huge": lambda: np.clip(x * 2.0**127, -LARGEST, LARGEST),
        }[kind]().astype(F32)


KINDS = ("normal", "positive", "negative", "relu", "heavy", "zero", "constant", "subnormal", "huge")


def as_dtype(x: Array, name: str) -> Array:
    top = float(ml_dtypes.finfo(TENSOR_DTYPES[name]).max)
    return np.clip(x, -top, top).astype(TENSOR_DTYPES[name])
