"""Dialect `quark` is AMD Quark's op library in ONNX Runtime. Nothing is left out."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from blockscale.numerics.formats import MX_ELEMENTS
from blockscale.numerics.scheme import refined
from conformance import cases
from conformance.data import F32, adversarial
from peers import runners
from peers.ours import Ours

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]
LEAST = 1_000_000


@pytest.fixture(autouse=True)
def _peer(need: Any) -> None:
    need("onnxruntime")
    with runners.quiet():
        need("quark.onnx.operators.custom_ops")


@cache
def data(element: str) -> Any:
    return adversarial(element, thorough=True)


@pytest.mark.parametrize(("element", "rounding"), cases.QUARK)
def test_quark(element: str, rounding: str, ours: Ours, compare: Any) -> None:
    x = data(element)
    mine = ours.fake_quantize(x, cases.mx(element, "quark", rounding=rounding))
    theirs = runners.quark(x, element, cases.QUARK_MODES[rounding])
    compare(mine, theirs, x, least=LEAST)


@pytest.mark.parametrize(("element", "rounding"), cases.QUARK)
def test_quark_float16(element: str, rounding: str, ours: Ours, compare: Any) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    more = np.random.default_rng(7).choice(every, (20000, 32))
    x = np.concatenate([data(element).astype(np.float16), every.reshape(-1, 32), more])
    mine = ours.fake_quantize(x, cases.mx(element, "quark", rounding=rounding))
    theirs = runners.quark(x, element, cases.QUARK_MODES[rounding])
    compare(mine, theirs, x, least=LEAST)


@pytest.mark.parametrize("element", MX_ELEMENTS)
def test_quark_fix_neuron(element: str, ours: Ours, compare: Any) -> None:
    x = data(element)
    mine = ours.fake_quantize(x, cases.mx(element, "quark"))
    compare(mine, runners.quark(x, element, op="MXFixNeuron"), x, least=LEAST)


@pytest.mark.parametrize(
    ("shape", "axis", "block"),
    [((3000, 77), -1, 32), ((96, 2400), 0, 32), ((40, 33, 50), 1, 16), ((500, 41), 1, 5), ((900, 3), -1, 1)],
)
@pytest.mark.parametrize("element", MX_ELEMENTS)
def test_quark_blocks(
    element: str, shape: tuple[int, ...], axis: int, block: int, ours: Ours, compare: Any
) -> None:
    x = np.resize(data(element), shape)
    scheme = refined(cases.mx(element, "quark"), axis=axis, block=block)
    compare(ours.fake_quantize(x, scheme), runners.quark(x, element, 2, axis, block), x)


def test_quark_leaves_single_elements_alone(ours: Ours) -> None:
    """A defect that is not copied: a tensor of one element comes back as it is."""
    x = np.array([[1.3]], F32)
    assert runners.quark(x, "fp4_e2m1") == x
    assert ours.fake_quantize(x, cases.mx("fp4_e2m1", "quark")) == 1.5
