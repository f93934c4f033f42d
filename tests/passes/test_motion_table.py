"""The motion table on graphs: what it lets go moves, what it does not stays with a reason, no bit changes.

That the table itself is right is shown in tests/numerics; here passes must use all of it, and no more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.numerics.follow import Moved
from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import Abs, Move, Neg, Pad, Relu, Split
from blockscale.numerics.stored_moves import stored_move
from blockscale.numerics.through import through
from numerics.moving import any_move, layouts, params_for
from passes import fx_graphs, onnx_graphs
from passes.moving_graphs import after, fake_quantizer, lifts, quantizer
from passes.proof import is_input, proven, shape


@st.composite
def moves_on(draw: st.DrawFn, layout: Layout) -> Move:
    kind = draw(st.sampled_from(("any", "any", "any", "pad", "sign")))
    if kind == "pad" and layout.rank:
        widths = st.sampled_from((0, 0, 1, 2, 4, *layout.block))
        return Pad(tuple((draw(widths), draw(widths)) for _ in layout.shape))
    if kind == "sign":
        return draw(st.sampled_from((Neg(), Abs(), Relu())))
    return draw(any_move(layout))


def zero_point_of(q: Sequence[Any], layout: Layout, seed: int) -> int | None:
    """That of a quantize; None where it is not one known number."""
    params = params_for(layout, seed)
    if q[2] is None:
        return 0
    return None if params is None or params.zero_points.size != 1 else int(params.zero_points.item())


BUILDERS = pytest.mark.parametrize("builder", (fx_graphs.Builder, onnx_graphs.Builder), ids=("fx", "onnx"))


@BUILDERS
@settings(max_examples=300)
@given(st.data(), layouts(), st.integers(0, 1 << 20), st.booleans())
def test_a_quantize_lifts_exactly_when_the_table_says(
    builder: Any, data: st.DataObject, layout: Layout, seed: int, fake: bool
) -> None:
    move = data.draw(moves_on(layout))
    b = builder()
    x = b.input(*layout.shape)
    made = b.move(x, move)
    several = made if isinstance(move, Split) else [made]
    outputs, layouts_after = [], after(layout, move)
    whys = []
    for y, one in zip(several, layouts_after, strict=True):
        zero = 0
        if fake:
            outputs.append(fake_quantizer(b, y, one, seed))
        else:
            q = quantizer(b, y, one, seed)
            zero = zero_point_of(q, one, seed)
            outputs += [v for v in q if v is not None]
        whys.append(lifts(one, move, layout.shape, zero, fake))
    proof = proven(b.done(*outputs), b.examples, stages=("cse", "lift"))
    kind = "fake_quantize" if fake else "quantize"
    nodes, reasons = proof.nodes(kind), proof.reasons("lift")
    if len(several) == 1:
        (node,) = nodes
        grows = layout.size > math.prod(layouts_after[0].shape)
        assert is_input(node.operand(0)) == (not whys[0] and not grows), f"{whys}\n{proof.log}"
        assert (
            is_input(node.operand(0))
            or ("that would quantize all" if not whys[0] else "not lifted") in reasons
        )
    elif any(whys):
        assert "not lifted over" in reasons
    elif all(one.numbers.dynamic or one.numbers.family != "affine" for one in layouts_after):
        assert len(nodes) == 1 and is_input(nodes[0].operand(0)), f"{proof.log}"


@BUILDERS
@settings(max_examples=300)
@given(st.data(), layouts(), st.integers(0, 1 << 20))
def test_a_dequantize_sinks_exactly_when_the_table_says(
    builder: Any, data: st.DataObject, layout: Layout, seed: int
) -> None:
    move = data.draw(moves_on(layout))
    b = builder()
    x = b.input(*layout.shape)
    q = quantizer(b, x, layout, seed)
    y = b.move(b.dequantize(q, x, str(layout.numbers), layout.block), move)
    results = y if isinstance(move, Split) else [y]
    proof = proven(b.done(*results), b.examples, stages=("sink",))
    moved = through(layout, move, codes=True)
    why = "" if moved else moved.reason
    if isinstance(moved, Moved):
        stored = stored_move(moved, move, zero_point_of(q, layout, seed))
        why = "" if stored else getattr(stored, "reason", "")
    grows = sum(math.prod(one) for one in move.shapes(layout.shape)) > layout.size
    nodes = proof.nodes("dequantize")
    if not why and not grows:
        assert all(
            isinstance(n.outputs[0].users[0].kind, str) and n.outputs[0].users[0].kind == "output"
            for n in nodes
        )
        assert len(nodes) == len(results)
    else:
        (node,) = nodes
        assert shape(node.outputs[0]) == layout.shape
        assert (why or "elements would be decoded") in proof.reasons("sink")
