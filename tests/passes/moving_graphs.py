"""Graphs of one move and one quantize with a given layout, for the tests of motion."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from blockscale.graph.fx_tensors import tensor_of
from blockscale.numerics.arrays import TENSOR_DTYPES
from blockscale.numerics.codec import Params
from blockscale.numerics.follow import Moved
from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import Move, Split
from blockscale.numerics.stored_moves import stored_move
from blockscale.numerics.through import Refused, lifted, through
from numerics.moving import candidates, params_for

Builder = Any  # of fx_graphs or onnx_graphs: they have the same methods


def quantizer(b: Builder, x: Any, layout: Layout, seed: int = 0) -> list[Any]:
    """codes, scale, zero point and tensor scale of a quantize of `x`; None for those that it has not."""
    numbers, place = layout.numbers, (str(layout.numbers), layout.block)
    params = params_for(layout, seed)
    if params is None:
        given = () if numbers.dynamic or not numbers.tensor_scale else (b.constant(torch.tensor(0.01)),)
        made = b.measure(x, *place, *given)
        return [*made[:2], made[2] if numbers.zero_point else None, made[3] if numbers.tensor_scale else None]
    given = constants(b, layout, params)
    return [b.quantize(x, *place, *given), *given, *[None] * (3 - len(given))]


def constants(b: Builder, layout: Layout, params: Params) -> list[Any]:
    scales = params.scales.astype(TENSOR_DTYPES[layout.numbers.scale])
    arrays = [scales] if params.zero_points is None else [scales, params.zero_points.astype(np.int32)]
    return [b.constant(tensor_of(array)) for array in arrays]


def fake_quantizer(b: Builder, x: Any, layout: Layout, seed: int = 0) -> Any:
    numbers, params = layout.numbers, params_for(layout, seed)
    if params is not None:
        given = constants(b, layout, params)
    elif numbers.tensor_scale and not numbers.dynamic:
        given = [None, None, b.constant(torch.tensor(0.01))]
    else:
        given = []
    return b.fake(x, str(numbers), layout.block, *given)


def after(layout: Layout, move: Move) -> list[Layout]:
    """Layouts of the results of `move`: those that `layout` becomes, else some that it might be thought to."""
    moved = through(layout, move)
    if isinstance(moved, Moved):
        return list(moved.after)
    if isinstance(move, Split):
        return [Layout(layout.numbers, shape, layout.block) for shape in move.shapes(layout.shape)]
    found = candidates(layout, move)
    shape = move.shape(layout.shape)
    return [
        found[0]
        if found
        else Layout(layout.numbers, shape, (*(1,) * len(shape), *layout.block)[-len(shape) :])
    ]


def lifts(layout: Layout, move: Move, shape: tuple[int, ...], zero_point: int | None, fake: bool) -> str:
    """Why a quantize with `layout` behind `move` on `shape` must stay; empty if the contract lets it go."""
    moved = lifted(layout, move, shape)
    if isinstance(moved, Refused):
        return moved.reason
    if fake:
        both = through(moved.before[0], move, codes=True)
        return both.reason if isinstance(both, Refused) else ""
    stored = stored_move(moved, move, zero_point)
    return stored.reason if isinstance(stored, Refused) else ""
