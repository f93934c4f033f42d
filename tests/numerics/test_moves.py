"""Moves alone: what they do to numpy arrays and torch tensors, and the sizes they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from blockscale.errors import ArgumentError, AxisError, BlockscaleError, ShapeError
from blockscale.numerics.moves import (
    Abs,
    Cat,
    Chain,
    ClearBit,
    Expand,
    Flip,
    FlipBit,
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
    Same,
    Slice,
    Split,
)

X = np.arange(-12, 12, dtype=np.int32).reshape(2, 3, 4)
MOVES: list[tuple[Move, object]] = [
    (Same(), X),
    (Reshape((4, -1)), X.reshape(4, 6)),
    (Permute((2, 0, -2)), X.transpose(2, 0, 1)),
    (Expand((5, -1, 3, 4)), np.broadcast_to(X, (5, 2, 3, 4))),
    (Slice(-1, -3, None, 2), X[..., -3::2]),
    (Slice(1, 2, 1), X[:, 2:1]),
    (Gather(1, (2, -3, 2)), X[:, [2, 0, 2]]),
    (Repeat((1, 2, 3)), np.tile(X, (1, 2, 3))),
    (Flip((0, -1)), X[::-1, :, ::-1]),
    (Roll((1, -2), (0, 2)), np.roll(X, (1, -2), (0, 2))),
    (Pad(((0, 1), (2, 0), (0, 0)), 7), np.pad(X, ((0, 1), (2, 0), (0, 0)), constant_values=7)),
    (Chain((Flip((0,)), Reshape((24,)))), X[::-1].reshape(24)),
    (Neg(), -X),
    (Abs(), abs(X)),
    (Relu(), np.maximum(X, 0)),
    (Relu(3), np.maximum(X, 3)),
    (FlipBit(3), X ^ 8),
    (ClearBit(3), X & 7),
]  # fmt: skip


@pytest.mark.parametrize(("move", "expected"), MOVES, ids=lambda v: str(v) if isinstance(v, Move) else "")
def test_apply(move: Move, expected: np.ndarray) -> None:
    found = move.apply(X)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == X.dtype
    assert move.shape(X.shape) == expected.shape


@pytest.mark.parametrize(("move", "expected"), MOVES, ids=lambda v: str(v) if isinstance(v, Move) else "")
def test_apply_to_torch(move: Move, expected: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    np.testing.assert_array_equal(move.apply(torch.from_numpy(X)).numpy(), expected)


def test_cat_and_split() -> None:
    torch = pytest.importorskip("torch")
    parts = Split(1, (1, 0, 2)).apply(X)
    assert [part.shape for part in parts] == list(Split(1, (1, 0, 2)).shapes(X.shape))
    np.testing.assert_array_equal(Cat(-2).apply(parts), X)
    tensors = Split(1, (1, 0, 2)).apply(torch.from_numpy(X))
    np.testing.assert_array_equal(Cat(-2).apply(tensors).numpy(), X)
    assert MulPow2(-1).apply(np.float32(3)) == 1.5


@pytest.mark.parametrize(
    ("move", "error"),
    [
        (Reshape((5, 5)), ShapeError),
        (Reshape((-1, -1)), ShapeError),
        (Permute((0, 1)), AxisError),
        (Permute((0, 1, 1)), AxisError),
        (Permute((0, 1, 3)), AxisError),
        (Expand((2, 5, 4)), ShapeError),
        (Expand((4,)), ShapeError),
        (Slice(3), AxisError),
        (Split(0, (1, 2)), ShapeError),
        (Split(0, ()), ShapeError),
        (Gather(0, (2,)), ArgumentError),
        (Repeat((2, 2)), ShapeError),
        (Flip((0, 0)), AxisError),
        (Roll((1,), (0, 1)), ArgumentError),
        (Pad(((0, 0), (0, 0), (-1, 0))), ShapeError),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit(move: Move, error: type[BlockscaleError]) -> None:
    with pytest.raises(error):
        move.shapes(X.shape)


def test_other_sizes_that_do_not_fit() -> None:
    with pytest.raises(ArgumentError, match="Flip"):
        Slice(0, 2, 0, -1)
    with pytest.raises(ShapeError, match="equal but for"):
        Cat(0).shapes((2, 3), (2, 4))
    with pytest.raises(ArgumentError):
        Cat(0).shapes()
