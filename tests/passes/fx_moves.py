"""Moves as calls of ATen, in the spellings that models have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from blockscale.numerics import moves

if TYPE_CHECKING:
    from passes.fx_graphs import Builder

aten = torch.ops.aten
Sizes = Sequence[Any]


def moved(b: Builder, x: Any, move: moves.Move) -> Any:
    """`move` of a node, or for Cat of a list of them; for Split a list is given back."""
    return _call(move, b, x)


@singledispatch
def _call(move: moves.Move, b: Builder, x: Any) -> Any:
    raise NotImplementedError(move)


def _by(kind: type[moves.Move], write: Callable[[Builder, Any, Any], fx.Node]) -> None:
    _call.register(kind)(lambda move, b, x: write(b, x, move))


def _view(b: Builder, x: fx.Node, move: moves.Reshape) -> fx.Node:
    """`view` where strides allow it."""
    try:
        return b.call(aten.view.default, x, list(move.target))
    except (RuntimeError, ValueError):
        return b.call(aten.reshape.default, x, list(move.target))


def _gather(b: Builder, x: fx.Node, move: moves.Gather) -> fx.Node:
    positions = move.positions(x.meta["val"].shape[move.axis])  # torch has no negative ones
    return b.call(
        aten.index_select.default, x, move.axis, b.constant(torch.tensor(positions, dtype=torch.int64))
    )


def _pad(b: Builder, x: fx.Node, move: moves.Pad) -> fx.Node:
    flat = [width for pair in reversed(move.widths) for width in pair]
    return b.call(aten.constant_pad_nd.default, x, flat, move.value)


_by(moves.Reshape, _view)
_by(moves.Permute, lambda b, x, m: b.call(aten.permute.default, x, list(m.dims)))
_by(moves.Expand, lambda b, x, m: b.call(aten.expand.default, x, list(m.target)))
_by(
    moves.Slice,
    lambda b, x, m: b.call(
        aten.slice.Tensor, x, m.axis, m.start, 2**63 - 1 if m.stop is None else m.stop, m.step
    ),
)
_by(moves.Split, lambda b, x, m: b.items(b.call(aten.split_with_sizes.default, x, list(m.sizes), m.axis)))
_by(moves.Cat, lambda b, x, m: b.call(aten.cat.default, list(x), m.axis))
_by(moves.Gather, _gather)
_by(moves.Repeat, lambda b, x, m: b.call(aten.repeat.default, x, list(m.times)))
_by(moves.Flip, lambda b, x, m: b.call(aten.flip.default, x, list(m.axes)))
_by(moves.Roll, lambda b, x, m: b.call(aten.roll.default, x, list(m.shifts), list(m.axes)))
_by(moves.Pad, _pad)
_by(moves.Neg, lambda b, x, m: b.call(aten.neg.default, x))
_by(moves.Abs, lambda b, x, m: b.call(aten.abs.default, x))
_by(moves.Relu, lambda b, x, m: b.call(aten.relu.default, x))
_by(moves.MulPow2, lambda b, x, m: b.call(aten.mul.Tensor, x, 2.0**m.k))
