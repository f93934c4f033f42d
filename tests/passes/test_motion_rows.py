"""Every row of the motion table for every family of layouts, in examples: a quantize goes, or stays."""

from __future__ import annotations

from typing import Any

import pytest

from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import (
    Abs,
    Cat,
    Expand,
    Flip,
    Gather,
    Move,
    MulPow2,
    Neg,
    Pad,
    Permute,
    Relu,
    Repeat,
    Reshape,
    Roll,
    Slice,
    Split,
)
from blockscale.numerics.scheme import numbers_named
from passes import fx_graphs, onnx_graphs
from passes.moving_graphs import quantizer
from passes.proof import Proof, is_input, proven

BUILDERS = pytest.mark.parametrize("builder", [fx_graphs.Builder, onnx_graphs.Builder], ids=["fx", "onnx"])

# family → numbers, blocks on [n, 64] and on [n, 8, 64] (the last axis is quantized)
FAMILIES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    "tensor static": ("int8,dynamic=false", (0, 0), (0, 0, 0)),
    "tensor asymmetric": ("uint8,dynamic=false", (0, 0), (0, 0, 0)),
    "channel static": ("int8,dynamic=false", (0, 1), (0, 0, 1)),
    "token static": ("int8,dynamic=false", (1, 0), (1, 1, 0)),
    "token dynamic": ("int8", (1, 0), (1, 1, 0)),
    "token asymmetric": ("uint8", (1, 0), (1, 1, 0)),
    "group static": ("int8,dynamic=false", (1, 32), (1, 1, 32)),
    "group dynamic": ("int8", (1, 32), (1, 1, 32)),
    "group asymmetric": ("uint4", (1, 32), (1, 1, 32)),
    "mxfp4": ("mxfp4", (1, 32), (1, 1, 32)),
    "mxfp6": ("mxfp6_e2m3", (1, 32), (1, 1, 32)),
    "mxfp8": ("mxfp8", (1, 32), (1, 1, 32)),
    "mxint8": ("mxint8", (1, 32), (1, 1, 32)),
    "nvfp4 static": ("nvfp4,dynamic=false", (1, 16), (1, 1, 16)),
    "nvfp4 dynamic": ("nvfp4", (1, 16), (1, 1, 16)),
    "tensor dynamic": ("int8", (0, 0), (0, 0, 0)),
}
EVERY = tuple(FAMILIES)
STATIC_TENSOR = ("tensor static", "tensor asymmetric")
WHOLE = ("nvfp4 dynamic", "tensor dynamic")  # measured over the whole tensor
TOKEN = ("token static", "token dynamic", "token asymmetric")
GROUP = ("group static", "group dynamic", "group asymmetric")
MX = ("mxfp4", "mxfp6", "mxfp8", "mxint8")
NV = ("nvfp4 static", "nvfp4 dynamic")
BLOCKS = (*GROUP, *MX, *NV)
HALF_BYTES = ("group asymmetric", "mxfp4", *NV)  # two codes a byte
BYTES_SHARED = (*HALF_BYTES, "mxfp6")
SEVERAL_GIVEN = ("channel static", "token static", "group static")
MEASURED = ("token dynamic", "token asymmetric")
SEVERAL_ROWS = ("token static", "group static")
Row = tuple[tuple[int, ...], Move, tuple[str, ...]]


def without(*families: str) -> tuple[str, ...]:
    return tuple(one for one in EVERY if one not in families)


# row: shape before, move, the families for which a quantize of the result goes above
ROWS: dict[str, Row] = {
    "reshape of rows": ((2, 4, 64), Reshape((8, 64)), EVERY),
    "reshape to rows": ((8, 64), Reshape((1, 8, 64)), EVERY),
    "reshape that adds a one": ((8, 64), Reshape((8, 1, 64)), EVERY),
    "reshape that splits rows into blocks": ((4, 128), Reshape((8, 64)), without("channel static", "mxfp6")),
    "reshape that merges rows": ((16, 32), Reshape((8, 64)), without("channel static", "mxfp6")),
    "reshape that tears blocks": ((8, 4, 16), Reshape((8, 64)), without(*MX)),
    "reshape across": ((64, 8), Reshape((8, 64)), without("channel static", *MX, *NV)),
    "permute": ((4, 8, 64), Permute((1, 0, 2)), EVERY),
    "slice of all": ((8, 64), Slice(0, 0, 8), EVERY),
    "expand of nothing": ((8, 64), Expand((8, 64)), EVERY),
    "expand of new": ((8, 64), Expand((3, 8, 64)), without(*SEVERAL_GIVEN)),
    "expand of rows": ((1, 64), Expand((8, 64)), without(*SEVERAL_ROWS)),
    "expand of the blocked axis": ((8, 1), Expand((8, 64)), without("channel static", "group static", *BYTES_SHARED)),
    "flip of rows": ((8, 64), Flip((0,)), EVERY),
    "flip of blocks": ((8, 64), Flip((1,)), without(*BYTES_SHARED)),
    "roll of rows": ((8, 64), Roll((3,), (0,)), EVERY),
    "roll of blocks": ((8, 64), Roll((32,), (1,)), without("mxfp6")),
    "roll that tears blocks": ((8, 64), Roll((8,), (1,)), without(*BLOCKS)),
    "gather of rows": ((8, 64), Gather(0, (3, 1, 2, 0, 7, 6, 5, 4)), EVERY),
    "gather of blocks": ((8, 64), Gather(1, (*range(32, 64), *range(32))), without("mxfp6")),
    "gather that tears blocks": ((8, 64), Gather(1, (*range(8, 64), *range(8))), without(*BLOCKS)),
    "gather of rows twice": ((4, 64), Gather(0, (0, 1, 2, 3, 3, 2, 1, 0)), without(*SEVERAL_ROWS)),
    "repeat of rows": ((4, 64), Repeat((2, 1)), without(*SEVERAL_ROWS)),
    "repeat of blocks": ((8, 32), Repeat((1, 2)), without("channel static", "group static", "mxfp6")),
    "repeat of parts of blocks": ((8, 8), Repeat((1, 8)), without("channel static", "group static", "mxfp6")),
    "pad of rows": ((6, 64), Pad(((0, 2), (0, 0))), without("token asymmetric", "group asymmetric")),
    "pad of blocks": ((8, 32), Pad(((0, 0), (0, 32))), without("token asymmetric", *BYTES_SHARED)),
    "pad in front": ((8, 32), Pad(((0, 0), (32, 0))), without("token asymmetric", *BYTES_SHARED)),
    "pad that tears blocks": ((8, 56), Pad(((0, 0), (8, 0))), without("token asymmetric", *BLOCKS)),
    "neg": ((8, 64), Neg(), ("mxint8",)),
    "abs": ((8, 64), Abs(), ("mxint8", "mxfp8")),
    "relu": ((8, 64), Relu(), (*STATIC_TENSOR, *SEVERAL_GIVEN)),
    "a power of two": ((8, 64), MulPow2(1), ()),
}  # fmt: skip


def built(builder: Any, shape: tuple[int, ...], move: Move, family: str) -> tuple[Any, list[Any]]:
    """A quantize of the results of `move`."""
    name, two, three = FAMILIES[family]
    b = builder()
    made = b.move(b.input(*shape), move)
    outputs = []
    for result, after in zip(made if isinstance(made, list) else [made], move.shapes(shape), strict=True):
        layout = Layout(numbers_named(name), after, {2: two, 3: three}[len(after)])
        outputs += [value for value in quantizer(b, result, layout) if value is not None]
    return b, outputs


def lifted(proof: Proof) -> bool:
    nodes = proof.nodes("quantize")
    assert nodes
    return all(is_input(node.operand(0)) for node in nodes)


@BUILDERS
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("row", ROWS)
def test_one_result(builder: Any, row: str, family: str) -> None:
    before, move, legal = ROWS[row]
    b, outputs = built(builder, before, move, family)
    proof = proven(b.done(*outputs), b.examples, stages=("lift",))
    assert lifted(proof) == (family in legal), f"{proof.log}"
    if family not in legal:
        assert "not lifted over" in proof.reasons("lift")


# Where the result is smaller, and the reason to stay is that alone.
LARGER: dict[str, Row] = {
    "slice of rows": ((16, 64), Slice(0, 3, 11), without(*SEVERAL_ROWS, *WHOLE)),
    "every other row": ((16, 64), Slice(0, 1, None, 2), without(*SEVERAL_ROWS, *WHOLE)),
    "slice of blocks": (
        (8, 128),
        Slice(1, 32, 96),
        without("channel static", "group static", *MEASURED, *WHOLE, "mxfp6"),
    ),
    "slice that tears blocks": ((8, 128), Slice(1, 8, 72), ("token static", *STATIC_TENSOR)),
    "gather of some rows": ((16, 64), Gather(0, (0, 15, 3)), without(*SEVERAL_ROWS, *WHOLE)),
}


@BUILDERS
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("row", LARGER)
def test_what_would_quantize_more_waits(builder: Any, row: str, family: str) -> None:
    before, move, legal = LARGER[row]
    b, outputs = built(builder, before, move, family)
    proof = proven(b.done(*outputs), b.examples, stages=("lift",))
    assert not lifted(proof)
    assert ("that would quantize all" in proof.reasons("lift")) == (family in legal), f"{proof.log}"


# ------------------------------------------------------------------------- several parts


PARTS: dict[str, Row] = {
    "rows": ((8, 64), Split(0, (3, 5)), without("token static", "group static", *WHOLE)),
    "blocks": (
        (8, 96),
        Split(1, (32, 64)),
        without("channel static", "group static", *MEASURED, *WHOLE, "mxfp6"),
    ),
    "parts of blocks": ((8, 80), Split(1, (16, 64)), ("nvfp4 static", "token static", *STATIC_TENSOR)),
}


@BUILDERS
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("row", PARTS)
def test_parts_of_a_split(builder: Any, row: str, family: str) -> None:
    before, move, legal = PARTS[row]
    b, outputs = built(builder, before, move, family)
    proof = proven(b.done(*outputs), b.examples, stages=("cse", "lift"))
    assert lifted(proof) == (family in legal), f"{proof.log}"
    assert len(proof.nodes("quantize")) == (1 if family in legal else 2)
    assert family in legal or "not lifted over" in proof.reasons("lift")


CATS: dict[str, Row] = {
    "rows": ((4, 64), Cat(0), without("token static", "group static", *WHOLE)),
    "blocks": ((4, 32), Cat(1), without("channel static", "group static", *MEASURED, *WHOLE, "mxfp6")),
    "parts of blocks": ((4, 24), Cat(1), ("token static", *STATIC_TENSOR)),
}


@BUILDERS
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("row", CATS)
def test_parts_of_a_cat_that_are_quantized_too(builder: Any, row: str, family: str) -> None:
    before, move, legal = CATS[row]
    name, block, _ = FAMILIES[family]
    b = builder()
    parts = [b.input(*before), b.input(*before)]
    numbers = numbers_named(name)
    whole = b.move(parts, move)
    sizes = [(one, before) for one in parts] + [(whole, move.shape(before, before))]
    made = [v for x, size in sizes for v in quantizer(b, x, Layout(numbers, size, block)) if v is not None]
    proof = proven(b.done(*made), b.examples, stages=("cse", "lift"))
    assert lifted(proof) == (family in legal), f"{proof.log}"
    assert len(proof.nodes("quantize")) == (2 if family in legal else 3)
    assert family in legal or "not lifted over" in proof.reasons("lift")
