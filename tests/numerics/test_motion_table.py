"""The motion table in examples, one a cell."""

from __future__ import annotations

import pytest

from blockscale.numerics.follow import Moved
from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import (
    Abs,
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
from blockscale.numerics.through import Refused
from numerics.moving import (
    assert_lifts,
)

STATIC = numbers_named("int8,dynamic=false")
DYNAMIC = numbers_named("int8")
MX = numbers_named("mxfp4")
NVFP4 = numbers_named("nvfp4")
PER_TENSOR = Layout(STATIC, (4, 64), (0, 0))
PER_TENSOR_DYNAMIC = Layout(DYNAMIC, (4, 64), (0, 0))
PER_TOKEN = Layout(DYNAMIC, (4, 64), (1, 0))
PER_CHANNEL = Layout(STATIC, (4, 64), (1, 0))
LAST_CHANNEL = Layout(STATIC, (4, 64), (0, 1))
PER_GROUP = Layout(STATIC, (4, 64), (1, 16))
BLOCKS = Layout(MX, (4, 64), (1, 32))
RAGGED = Layout(MX, (4, 40), (1, 32))
MIDDLE = Layout(MX, (4, 64, 6), (1, 32, 1))
NV = Layout(NVFP4, (4, 64), (1, 16))
NV_GIVEN = Layout(numbers_named("nvfp4,dynamic=false"), (4, 64), (1, 16))

LEGAL: list[tuple[Layout, Move, tuple[int, ...]]] = [
    (PER_TENSOR, Reshape((16, 16)), (0, 0)),
    (PER_TOKEN, Reshape((2, 2, 64)), (1, 1, 0)),
    (PER_TOKEN, Reshape((4, 4, 16)), (1, 0, 0)),
    (PER_CHANNEL, Reshape((256,)), (64,)),
    (PER_CHANNEL, Reshape((16, 16)), (4, 0)),
    (PER_GROUP, Reshape((32, 8)), (2, 0)),
    (PER_GROUP, Reshape((4, 4, 16)), (1, 1, 16)),
    (PER_GROUP, Reshape((8, 32)), (1, 16)),
    (BLOCKS, Reshape((2, 2, 64)), (1, 1, 32)),
    (BLOCKS, Reshape((4, 1, 64, 1)), (1, 1, 32, 1)),
    (BLOCKS, Reshape((4, 2, 32)), (1, 1, 32)),
    (BLOCKS, Reshape((256,)), (32,)),
    (Layout(MX, (1, 40), (1, 32)), Reshape((40,)), (32,)),
    (MIDDLE, Reshape((4, 64, 2, 3)), (1, 32, 1, 1)),  # the first table had this as illegal
    (MIDDLE, Reshape((4, 2, 32, 6)), (1, 1, 32, 1)),
    (BLOCKS, Permute((1, 0)), (32, 1)),
    (MIDDLE, Permute((0, 2, 1)), (1, 1, 32)),
    (PER_CHANNEL, Permute((1, 0)), (0, 1)),
    (PER_TENSOR, Slice(1, 3, 50, 3), (0, 0)),
    (BLOCKS, Slice(0, 1, None, 2), (1, 32)),
    (BLOCKS, Slice(1, 32), (1, 32)),
    (RAGGED, Slice(1, 32), (1, 32)),
    (PER_TOKEN, Slice(0, 3), (1, 0)),
    (PER_CHANNEL, Slice(1, 5), (1, 0)),
    (NV_GIVEN, Slice(1, 16, 48), (1, 16)),
    (BLOCKS, Split(1, (32, 32)), (1, 32)),
    (RAGGED, Split(1, (32, 8)), (1, 32)),
    (BLOCKS, Expand((3, 4, 64)), (1, 1, 32)),
    (Layout(MX, (4, 1), (1, 32)), Expand((4, 40)), (1, 32)),
    (BLOCKS, Repeat((1, 3)), (1, 32)),
    (BLOCKS, Flip((1,)), (1, 32)),
    (BLOCKS, Roll((32,), (1,)), (1, 32)),
    (BLOCKS, Gather(1, (*range(32, 64), *range(32))), (1, 32)),
    (BLOCKS, Gather(0, (3, 3, 0)), (1, 32)),
    (BLOCKS, Pad(((1, 0), (32, 5))), (1, 32)),
    (RAGGED, Pad(((0, 0), (64, 0))), (1, 32)),  # the first table had this as illegal
    (PER_TENSOR, Pad(((1, 2), (3, 4))), (0, 0)),
    (PER_TOKEN, Pad(((0, 1), (3, 4))), (1, 0)),
    (NV, Pad(((0, 2), (0, 16))), (1, 16)),
    (Layout(numbers_named("mxint8"), (4, 40), (1, 32)), Neg(), (1, 32)),
    (BLOCKS, Abs(), (1, 32)),
    (PER_TENSOR, Relu(), (0, 0)),
    (PER_CHANNEL, Relu(), (1, 0)),  # the first table had this as illegal
]  # fmt: skip

ILLEGAL: list[tuple[Layout, Move]] = [
    (PER_TENSOR_DYNAMIC, Slice(0, 1)),
    (PER_TENSOR_DYNAMIC, Split(0, (2, 2))),
    (PER_TENSOR_DYNAMIC, Gather(0, (0, 0))),
    (PER_TENSOR_DYNAMIC, Relu()),
    (NV, Slice(0, 1)),
    (NV, Split(0, (2, 2))),
    (NV, Gather(0, (0, 0))),
    (Layout(DYNAMIC, (6, 4), (1, 0)), Reshape((4, 6))),
    (PER_TOKEN, Slice(1, 0, 63)),
    (LAST_CHANNEL, Reshape((256,))),
    (LAST_CHANNEL, Reshape((8, 32))),
    (Layout(STATIC, (4, 60), (1, 20)), Reshape((8, 30))),
    (BLOCKS, Reshape((4, 4, 16))),
    (RAGGED, Reshape((160,))),
    (RAGGED, Reshape((4, 2, 20))),
    (MIDDLE, Reshape((4, 384))),
    (MIDDLE, Reshape((4, 32, 12))),
    (BLOCKS, Slice(1, 16)),
    (BLOCKS, Slice(1, 0, 48)),
    (BLOCKS, Slice(1, 0, None, 2)),
    (BLOCKS, Split(1, (16, 48))),
    (RAGGED, Repeat((1, 2))),
    (RAGGED, Flip((1,))),
    (RAGGED, Roll((32,), (1,))),
    (BLOCKS, Roll((16,), (1,))),
    (BLOCKS, Gather(1, tuple(range(16)))),
    (BLOCKS, Pad(((0, 0), (16, 0)))),
    (Layout(numbers_named("uint8,dynamic=false"), (4, 64), (1, 0)), Pad(((0, 0), (0, 1)))),
    (BLOCKS, Neg()),  # the first table had this as legal: the codes of a NaN block are 0
    (Layout(numbers_named("mxint8,rounding=half_up"), (4, 64), (1, 32)), Neg()),
    (PER_TENSOR, Neg()),
    (BLOCKS, MulPow2(1)),
    (PER_TENSOR, MulPow2(1)),
    (BLOCKS, Relu()),
    (Layout(numbers_named("mxfp4,rule=mse"), (4, 64), (1, 32)), Flip((1,))),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "move", "block"), LEGAL, ids=str)
def test_legal(layout: Layout, move: Move, block: tuple[int, ...]) -> None:
    moved = layout.through(move)
    assert isinstance(moved, Moved), moved
    assert {after.block for after in moved.after} == {block}
    for seed in range(5):
        assert_lifts(layout, move, moved, seed)


@pytest.mark.parametrize(("layout", "move"), ILLEGAL, ids=str)
def test_illegal_says_why(layout: Layout, move: Move) -> None:
    refused = layout.through(move)
    assert isinstance(refused, Refused) and not refused
    assert len(refused.reason) > 20
