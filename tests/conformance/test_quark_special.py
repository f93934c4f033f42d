"""Dialect `quark` where its fast kernels meet the ends of their range: special values, empty blocks, signs of zeros."""

from __future__ import annotations

import numpy as np
import pytest

from blockscale.numerics import codec, native
from blockscale.numerics.layout import bind
from blockscale.numerics.scheme import refined
from conformance import cases

ROWS, COLUMNS = 70, 256  # 16 blocks at a time, and some left


def random_bits(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 1 << 32, (ROWS, COLUMNS), dtype=np.uint32).view(np.float32)


def subnormal(rng: np.random.Generator) -> np.ndarray:
    bits = rng.integers(0, 1 << 24, (ROWS, COLUMNS), dtype=np.uint32)
    return (bits | rng.integers(0, 2, bits.shape, dtype=np.uint32) << 31).view(np.float32)


def scaled(rng: np.random.Generator) -> np.ndarray:
    """A scale for each row, from one end of float32 to the other."""
    exponents = np.linspace(-149, 127, ROWS).astype(np.int32)[:, None]
    return np.ldexp(rng.uniform(-1, 1, (ROWS, COLUMNS)), exponents).astype(np.float32)


def rectified(rng: np.random.Generator) -> np.ndarray:
    x = np.maximum(rng.standard_normal((ROWS, COLUMNS)), 0) * (rng.random((ROWS, 1)) < 0.5)
    x[:, ::7] = -0.0
    return x.astype(np.float32)


def vanishing(rng: np.random.Generator) -> np.ndarray:
    """Blocks of 2^s with elements around ±2^(s - 150), whose quotient by the scale is 0 or just not."""
    exponents = rng.integers(-20, 127, (ROWS, COLUMNS // 32, 1))
    x = np.ldexp(rng.choice([-1.0, 1.0], (ROWS, COLUMNS // 32, 32)), exponents - 150).astype(np.float32)
    step = rng.integers(-1, 2, x.shape)
    x = np.where(step < 0, np.nextafter(x, np.float32(0)), np.where(step > 0, x * np.float32(2), x))
    x[..., :1] = np.ldexp(1.0, exponents)
    return np.asarray(x.reshape(ROWS, COLUMNS), np.float32)


@pytest.mark.parametrize("make", [random_bits, subnormal, scaled, rectified, vanishing])
@pytest.mark.parametrize(("element", "rounding"), cases.QUARK)
def test_special_values(element: str, rounding: str, make: object) -> None:
    assert callable(make)
    x = make(np.random.default_rng(0))
    scheme = cases.mx(element, "quark", rounding=rounding)
    for axis, block, data in (
        (1, 32, x),
        (1, 16, x),
        (0, 32, np.ascontiguousarray(x.T)),
        (1, 32, x[:, :100]),
    ):
        layout = bind(refined(scheme, axis=axis, block=block), data.shape)
        with np.errstate(all="ignore"):
            wanted = np.asarray(codec.fake_quantize(data, layout), np.float32)
        found = native.fake_quantize(np.ascontiguousarray(data), layout)
        assert found.tobytes() == wanted.tobytes(), (axis, block)
