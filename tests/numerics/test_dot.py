"""The canonical dot product against exact rational arithmetic."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.errors import CombinationError, ShapeError
from blockscale.numerics import codec
from blockscale.numerics.arrays import Array
from blockscale.numerics.dot import dot, fraction_bits, integers
from blockscale.numerics.formats import format_named
from blockscale.numerics.layout import Layout, layout_named

NAMES = ("mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxint8")


def operand(
    name: str, shape: tuple[int, ...], seed: int, low: int = 0, high: int = 254
) -> tuple[Array, Array, Layout]:
    """Any codes with scale bytes from low to high."""
    layout = layout_named(name, shape)
    element = layout.numbers.element_format
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << element.bits, shape)
    if element.is_fixed:
        codes = codes - 128
    return codes, rng.integers(low, high + 1, layout.scale_shape), layout


def exactly(x: tuple[Array, Array, Layout], w: tuple[Array, Array, Layout], i: int, j: int) -> np.float32:
    """One result, from decoded values as fractions."""
    (xc, xs, xl), (wc, ws, wl) = x, w
    values = [layout.numbers.element_format.decode(codes) for codes, layout in ((xc[i], xl), (wc[j], wl))]
    total = np.float32(0)
    for k in range(xl.scale_shape[-1]):
        if 255 in (xs[i, k], ws[j, k]):
            return np.float32(np.nan)
        held = slice(32 * k, 32 * k + 32)
        pairs = zip(values[0][held].tolist(), values[1][held].tolist(), strict=True)
        exact = sum((Fraction(a) * Fraction(b) for a, b in pairs), Fraction(0))
        exact *= Fraction(2) ** (int(xs[i, k]) - 127) * Fraction(2) ** (int(ws[j, k]) - 127)
        with np.errstate(over="ignore", invalid="ignore"):
            assert Fraction(float(exact)) == exact  # so the only rounding is the next
            total = total + np.float32(float(exact))
    return total


def bits(a: Array) -> Array:
    a = np.asarray(a, np.float32)
    return np.where(np.isnan(a), np.uint32(0x7FC00000), a.view(np.uint32))


@settings(max_examples=60)
@given(
    st.sampled_from(list(itertools.product(NAMES, NAMES))), st.integers(1, 3), st.integers(1, 3),
    st.sampled_from((1, 5, 31, 32, 33, 64, 70)), st.integers(0, 2**32),
    st.sampled_from(((0, 254), (110, 140), (0, 60), (200, 255))),
)  # fmt: skip
def test_equals_rational_arithmetic(
    names: tuple[str, str], rows: int, columns: int, length: int, seed: int, scales: tuple[int, int]
) -> None:
    x = operand(names[0], (rows, length), seed, *scales)
    w = operand(names[1], (columns, length), seed + 1, *scales)
    found = dot(*x, *w)
    assert found.dtype == np.float32 and found.shape == (rows, columns)
    expected = [[exactly(x, w, i, j) for j in range(columns)] for i in range(rows)]
    np.testing.assert_array_equal(bits(found), bits(expected))


def test_a_row_does_not_depend_on_its_batch() -> None:
    x, xs, _ = operand("mxfp4", (2, 3, 70), 0, 120, 135)
    w = operand("mxint8", (5, 70), 1, 120, 135)
    whole = dot(x, xs, layout_named("mxfp4", (2, 3, 70)), *w)
    assert whole.shape == (2, 3, 5)
    for i, j in itertools.product(range(2), range(3)):
        np.testing.assert_array_equal(whole[i, j], dot(x[i, j], xs[i, j], layout_named("mxfp4", (70,)), *w))


def test_equals_the_dequantized_product() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 100)), rng.standard_normal((3, 100))
    for name in NAMES:
        both = [(a, layout_named(name, a.shape)) for a in (x, w)]
        q = [(codec.quantize(a, layout), layout) for a, layout in both]
        (((xc, xp), xl), ((wc, wp), wl)) = q
        values = [codec.dequantize(c, layout, p).astype(np.float64) for (c, p), layout in q]
        found = dot(xc, xp.scales, xl, wc, wp.scales, wl)
        np.testing.assert_allclose(found, values[0] @ values[1].T, rtol=1e-5, atol=1e-5)


def one(name: str, value: int, scales: list[int]) -> tuple[Array, Array, Layout]:
    """A row of 32-blocks whose first element is the integer `value`, the rest 0."""
    layout = layout_named(name, (1, 32 * len(scales)))
    codes = np.zeros(layout.shape, np.int64)
    codes[0, ::32] = value
    return codes, np.array([scales]), layout


@pytest.mark.parametrize(
    ("x_scales", "w_scales", "expected"),
    [
        ([0], [254], 1.0),  # 2^-127 · 2^127: never through 2^-127 alone
        ([254], [0], 1.0),
        ([254, 127], [254, 127], np.inf),
        ([0], [0], 0.0),  # 2^-254 is rounded to 0
        ([0], [105], 2.0**-149),
        ([0], [104], 0.0),  # half of the smallest subnormal: to even
        ([127, 255], [127, 127], np.nan),
        ([127, 127], [127, 255], np.nan),
        ([151, 127], [127, 127], 2.0**24),  # 2^24 + 1 in float32
        ([127, 151], [127, 127], 2.0**24),
    ],
)
def test_edges(x_scales: list[int], w_scales: list[int], expected: float) -> None:
    found = dot(*one("mxint8", 64, x_scales), *one("mxint8", 64, w_scales))
    np.testing.assert_array_equal(bits(found), bits([[expected]]))


def test_order_is_ascending_and_infinities_meet() -> None:
    codes, scales, layout = one("mxint8", 64, [151, 127, 151])
    codes[0, 64] = -64
    w = one("mxint8", 64, [127, 127, 127])
    assert dot(codes, scales, layout, *w) == 0  # (2^24 + 1) - 2^24, not 1
    far = np.array([[254, 254, 254]])
    assert np.isnan(dot(codes, far, layout, w[0], far, w[2]))


def test_no_blocks_is_zero() -> None:
    x, w = operand("mxfp4", (2, 0), 0), operand("mxfp4", (3, 0), 0)
    np.testing.assert_array_equal(bits(dot(*x, *w)), np.zeros((2, 3), np.uint32))
    assert dot(*operand("mxfp4", (0, 40), 0), *operand("mxfp4", (3, 40), 0)).shape == (0, 3)


@pytest.mark.parametrize("name", NAMES)
def test_integer_forms(name: str) -> None:
    element = format_named(layout_named(name, (32,)).numbers.element)
    codes = np.arange(1 << element.bits)
    values = element.decode(codes)
    signed = np.where(codes > 127, codes - 256, codes) if element.is_fixed else codes
    np.testing.assert_array_equal(integers(signed, element) * 2.0 ** -fraction_bits(element), values)


def test_errors() -> None:
    x, w = operand("mxfp4", (2, 64), 0), operand("mxfp4", (3, 64), 0)
    with pytest.raises(ShapeError, match=r"\[N, K\]"):
        dot(*x, *operand("mxfp4", (3, 32), 0))
    with pytest.raises(ShapeError):
        dot(*x, *operand("mxfp4", (2, 3, 64), 0))
    for name in ("mxfp8", "nvfp4", "int8"):
        other = layout_named(name, (3, 64))
        with pytest.raises(CombinationError, match="MXFP4, MXFP6 and MXINT8"):
            dot(*x, w[0], w[1], other)
    with pytest.raises(CombinationError, match="must be equal"):
        dot(*x, w[0], w[1], Layout(w[2].numbers, (3, 64), (1, 16)))
    with pytest.raises(CombinationError, match="last axis"):
        dot(*x, w[0], w[1], Layout(w[2].numbers, (3, 64), (3, 32)))
    far = Layout(layout_named("mxint8", (1, 2048)).numbers, (1, 2048), (1, 2048))
    with pytest.raises(CombinationError, match=r"2\^24"):
        dot(np.zeros((1, 2048)), np.zeros((1, 1)), far, np.zeros((1, 2048)), np.zeros((1, 1)), far)
