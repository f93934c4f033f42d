"""The ways for many MX blocks at once, along rows and across them, beside the reference: groups of 16 blocks,
tiles, tails, and groups in which a single block is out of the ordinary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from blockscale.numerics import codec, native
from blockscale.numerics.arrays import TENSOR_DTYPES
from blockscale.numerics.formats import MX_ELEMENTS
from blockscale.numerics.layout import Layout
from blockscale.numerics.packing import pack
from blockscale.numerics.scheme import Numbers
from conformance.core_cases import same_bits

ISAS = native._core.available_isas().split()
ELEMENTS = (*MX_ELEMENTS, "bfp12", "bfp16", "bfp20")
SPECIAL = (np.nan, np.inf, -np.inf, 3e38, -1e38, 1e-38, 2e-41, -1e-45, 70000.0, 6e-8)


@pytest.fixture(autouse=True)
def _the_best_set_afterwards() -> Iterator[None]:
    yield
    native._core.choose_isa("")


def data(shape: tuple[int, ...], kind: str, seed: int) -> Any:
    """Blocks of all magnitudes, ties, zeros of both signs; here and there a value that spoils a fast way."""
    r = np.random.default_rng(seed)
    x = r.standard_normal(shape).astype(np.float32)
    x *= np.exp2(r.integers(-12, 12, (shape[0], 1))).astype(np.float32)
    flat = x.reshape(-1)
    some = r.choice(flat.size, flat.size // 7, replace=False)
    flat[some] = np.round(flat[some] * 4) / 8
    flat[r.choice(flat.size, flat.size // 9, replace=False)] *= np.float32(0)
    x[shape[0] // 2] = 0
    places = r.choice(flat.size, 12, replace=False)
    flat[places] = r.choice(np.array(SPECIAL, np.float32), 12)
    with np.errstate(all="ignore"):
        return x.astype(TENSOR_DTYPES[kind])


def check(x: Any, layout: Layout, kind: str) -> None:
    with np.errstate(all="ignore"):
        wanted = codec.fake_quantize(x, layout, tensor_format=kind)
        codes, params = codec.quantize(x, layout, tensor_format=kind)
    packed = pack(np.asarray(codes), layout.numbers.element_format)
    for isa in ISAS:
        assert native._core.choose_isa(isa)
        assert same_bits(native.fake_quantize(x, layout), wanted).all(), isa
        inside = x.copy()
        native.fake_quantize(inside, layout, out=inside)
        assert same_bits(inside, wanted).all(), f"{isa}, in place"
        got, stored = native.quantize(x, layout)
        assert np.array_equal(got, packed), isa
        assert np.array_equal(stored.scales, np.asarray(params.scales).astype(np.uint8)), isa


@pytest.mark.parametrize("kind", TENSOR_DTYPES)
@pytest.mark.parametrize("rule", ["floor", "ceil", "even", "rceil"])
@pytest.mark.parametrize("element", ELEMENTS)
def test_along_rows(element: str, rule: str, kind: str) -> None:
    numbers = Numbers(element=element, rule=rule)
    for i, shape in enumerate(((40, 32 * 17), (3, 32 * 70 + 9), (7, 32 * 16))):
        check(data(shape, kind, i), Layout(numbers, shape, (1, 32)), kind)


@pytest.mark.parametrize("rule", ["floor", "ceil", "even", "rceil"])
@pytest.mark.parametrize("element", ELEMENTS)
def test_across_rows(element: str, rule: str) -> None:
    numbers = Numbers(element=element, rule=rule)
    for i, (shape, block) in enumerate((((96, 2100), 32), ((70, 31), 32), ((9, 4500), 3), ((300, 80), 0))):
        check(data(shape, "f32", i), Layout(numbers, shape, (block, 1)), "f32")


def test_across_rows_of_a_deeper_tensor() -> None:
    x = data((6 * 40, 5 * 70), "f32", 1).reshape(6, 40, 5, 70)
    for block in ((1, 32, 1, 1), (1, 1, 2, 1), (2, 16, 1, 1)):
        check(x, Layout(Numbers(element="fp4_e2m1"), x.shape, block), "f32")


def test_past_the_caches() -> None:
    """Results larger than the last cache are written another way: equal to those of its parts."""
    rows = 3 * 1024
    x = data((rows, 4096), "f32", 0)
    for element in ("fp4_e2m1", "mxint8"):
        for block in ((1, 32), (32, 1)):
            whole = native.fake_quantize(x, Layout(Numbers(element=element), x.shape, block))
            part = x[:96]
            parts = native.fake_quantize(part, Layout(Numbers(element=element), part.shape, block))
            assert same_bits(whole[:96], parts).all()
            last = x[-96:]
            parts = native.fake_quantize(last, Layout(Numbers(element=element), last.shape, block))
            assert same_bits(whole[-96:], parts).all()
