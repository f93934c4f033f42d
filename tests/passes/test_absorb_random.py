"""Random graphs of quantizers, what selects and what moves: absorb, notes and factors change no bit."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.graph.view import Node
from blockscale.passes import absorb
from passes.fx_graphs import Builder, aten
from passes.proof import proven
from passes.test_absorb import clamp, decoded, half, params, pool, relu, relu6, transposed
from passes.test_fold_metadata import measured, noted

OPERATORS = (relu, relu6, clamp, pool, transposed, half)
STATIC = ("int8,dynamic=false", "uint8,dynamic=false", "int16,dynamic=false", "fp8_e4m3,dynamic=false")
MEASURED = ("mxint8-g4", "mxfp4-g4", "int8-token")


def grown(seed: int, dynamic: bool) -> Builder:
    """A graph whose steps take any value that there is, so values have several users."""
    pick = random.Random(seed)
    b = Builder()
    values = [b.input(2, 3, 8, 8)]
    given_of: dict[str, list] = {}
    for scheme in STATIC:
        given_of[scheme] = params(b, scheme, (1, 1, 1, 1), pick.choice([0.05, 0.5, 1.0]), 7)
    for _ in range(pick.randint(3, 9)):
        x = pick.choice(values[-3:])
        if pick.random() < 0.45:
            operator = pick.choice(OPERATORS)
            large = min(x.meta["val"].shape[2:]) >= 4 and x.meta["val"].shape[3] >= 4
            values.append((operator if large else relu)(b, x))
        elif dynamic and pick.random() < 0.5:
            values.append(measured(b, x, pick.choice(MEASURED)))
        else:
            scheme = pick.choice(STATIC[: pick.choice([1, 4])])
            values.append(decoded(b, x, scheme, given_of[scheme]))
    if pick.random() < 0.3:
        values.append(b.call(aten.cat.default, [values[-1], values[-1]], 0))
    b.module = b.done(values[-1], *pick.sample(values, pick.randint(0, 2)))
    return b


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 30), st.booleans())
def test_absorb(seed: int, dynamic: bool) -> None:
    b = grown(seed, dynamic)
    proven(b.module, b.examples, stages=("cse", "absorb"))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 30))
def test_notes(seed: int) -> None:
    b = grown(seed, True)
    noted(b.module, b.examples, again=False)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 30))
def test_factors(seed: int) -> None:
    """A chain of factors and products, of which some are read elsewhere too."""
    pick = random.Random(seed)
    torch.manual_seed(seed)
    b = Builder()
    inputs = [b.input(4, 16), b.given(torch.randn(4, 16))]
    x = decoded(b, inputs[1], STATIC[0], params(b, STATIC[0], (1, 1))) if pick.random() < 0.7 else inputs[0]
    seen = [x]
    for _ in range(pick.randint(2, 7)):
        factor = 2.0 ** torch.randint(-3, 4, pick.choice([(), (16,), (4, 1)])) * pick.choice([1, -1])
        kind = pick.random()
        if kind < 0.5:
            x = b.call(pick.choice([aten.mul.Tensor, aten.div.Tensor]), x, b.constant(factor))
        elif kind < 0.8:
            weight = b.constant(torch.randn(16, 16))
            x = b.call(aten.linear.default, x, weight, b.constant(torch.randn(16)) if kind < 0.65 else None)
        else:
            x = decoded(b, x, STATIC[0], params(b, STATIC[0], (1, 1)))
        seen.append(x)
    module = b.done(x, *pick.sample(seen, pick.randint(0, 1)))
    proven(module, b.examples, stages=("fuse_scale",))


def test_a_way_is_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quantize at every step of a chain: what one was led to is not walked up to again by those below."""
    walked: list[int] = []
    paths = absorb._paths

    def counted(node: Node, ends: dict[Node, Node | None]) -> Any:
        found = paths(node, ends)
        walked.append(0 if found is None else len(found[1]))
        return found

    monkeypatch.setattr(absorb, "_paths", counted)
    for start in (True, False):  # of a dequantize, or of none
        b = Builder()
        given_params = params(b, STATIC[0], (1, 1))
        x = b.input(4, 8)
        y = decoded(b, x, STATIC[0], given_params) if start else b.call(aten.exp.default, x)
        outs = []
        for _ in range(20):
            y = b.call(aten.relu.default, y)
            outs.append(decoded(b, y, STATIC[0], given_params))
        proof = proven(b.done(*outs), b.examples, stages=("absorb",))
        assert len(proof.nodes("quantize")) == 20 + start
    assert max(walked) <= 2
