"""Dialect `microxcaling` is Microsoft's library, in the copy that TICO ships, on float32 on CPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from blockscale.numerics.formats import MX_ELEMENTS
from blockscale.numerics.scheme import refined
from conformance import cases
from conformance.data import F32, adversarial, normal, same
from peers import left_out, runners
from peers.ours import Ours

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]
LEAST = 1_000_000


@pytest.fixture(autouse=True)
def _peer(need: Any) -> None:
    with runners.quiet():
        need("tico.utils.mx.mx_ops")


@cache
def data(element: str) -> Any:
    return adversarial(element, thorough=True)


@pytest.mark.parametrize(("element", "rounding"), cases.MICROXCALING)
def test_microxcaling(element: str, rounding: str, ours: Ours, compare: Any) -> None:
    x = data(element)
    scheme = cases.mx(element, "microxcaling", rounding=rounding)
    theirs = runners.microxcaling(x, element, cases.MICROXCALING_NAMES[rounding])
    out = {"in blocks whose log2 rounds up": left_out.log2_rounds_up(left_out.finite_amax(x))}
    if rounding == "toward_zero" and element != "mxint8":
        out["whose own log2 rounds up"] = left_out.log2_of_element_rounds_up(x, element)
    compare(ours.fake_quantize(x, scheme), theirs, x, left_out=out, share=0.06, least=LEAST)
    codes, params = ours.quantize(x, scheme)
    decoded = ours.dequantize(codes, scheme, params)
    if element == "mxint8":  # codes have no -0
        theirs = theirs + F32(0)
    compare(decoded, theirs, x, left_out=out, share=0.06, least=LEAST, what="decoded")


@pytest.mark.parametrize(("element", "rounding"), cases.MICROXCALING)
def test_microxcaling_ordinary_data(element: str, rounding: str, ours: Ours, compare: Any) -> None:
    """Normal data near 1: nothing is left out."""
    x = np.random.default_rng(3).standard_normal((32768, 32)).astype(F32)
    theirs = runners.microxcaling(x, element, cases.MICROXCALING_NAMES[rounding])
    mine = ours.fake_quantize(x, cases.mx(element, "microxcaling", rounding=rounding))
    compare(mine, theirs, x, least=LEAST)


@pytest.mark.parametrize("element", MX_ELEMENTS)
def test_tico_is_microxcaling(element: str) -> None:
    x = data(element)
    for name in cases.MICROXCALING_NAMES.values():
        assert same(runners.tico(x, element, name), runners.microxcaling(x, element, name)).all()


@pytest.mark.parametrize(
    ("shape", "axis", "block"), [((3000, 77), -1, 32), ((96, 2400), 0, 32), ((40, 33, 50), 1, 16)]
)
@pytest.mark.parametrize("element", MX_ELEMENTS)
def test_microxcaling_blocks(
    element: str, shape: tuple[int, ...], axis: int, block: int, ours: Ours, compare: Any
) -> None:
    x = np.resize(normal(np.random.default_rng(2), 32, 8000), shape)
    scheme = refined(cases.mx(element, "microxcaling"), axis=axis, block=block)
    compare(ours.fake_quantize(x, scheme), runners.microxcaling(x, element, "nearest", axis, block), x)
