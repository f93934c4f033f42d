"""The five fields of an operand (`graph.fused_fields`) of tensors, as the codec's operators take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.errors import BlockError, BlockscaleError, CombinationError, ScaleError, ShapeError
from blockscale.graph.fused_fields import FLOAT, Fields, element_of, numbers_of
from blockscale.numerics.layout import Layout, block_of_scale


class Edge(NamedTuple):
    """What the codec's operators take."""

    numbers: str
    block: Sequence[int]
    scale: Tensor | None
    zero_point: Tensor | None
    tensor_scale: Tensor | None


class about:
    """Errors from here say where. (A class, as calls of operators are to cost little.)"""

    __slots__ = ("where",)

    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, BlockscaleError):
            error.args = (f"{self.where}: {error}",)


def edge_of(fields: Fields, shape: Sequence[Any], *, quantizes: bool) -> Edge:
    """Fields with a dtype, for an operand of that shape."""
    scale, zero_point, block = fields.scale, fields.zero_point, fields.block
    has_zero = zero_point is not None and tuple(zero_point.shape) != (0,)
    numbers = numbers_of(fields, None if scale is None else str(scale.dtype), has_zero)
    if quantizes and numbers.rounding == "stochastic":
        raise CombinationError("rounding 'stochastic' has a seed, which fused operators do not take")
    if scale is None:
        if block is None:
            raise BlockError("block", None, f"given where there is no scale: one entry for each of {shape}")
        if len(block) != len(shape):
            raise BlockError("block", tuple(block), f"one entry a dimension of shape {tuple(shape)}")
    else:
        block = _block(shape, scale.shape, block)
        scale = _singleton_at(scale, len(shape))
    if numbers.tensor_scale:
        return Edge(str(numbers), block, scale, None, zero_point)
    if zero_point is not None:
        zero_point = zero_point if not has_zero else _singleton_at(zero_point, len(shape))
    return Edge(str(numbers), block, scale, zero_point, None)


def _block(shape: Sequence[Any], scale_shape: Sequence[Any], block: Sequence[Any] | None) -> Sequence[Any]:
    """Given, or inferred from the dimensions that are known.

    Of a symbolic dimension nothing is asked, as that would be a guard; fake kernels, the only ones to
    meet one, return the same whatever its block is.
    """
    if len(scale_shape) != len(shape):
        return block_of_scale(shape, scale_shape)
    if block is not None:
        if len(block) != len(shape):
            raise BlockError("block", tuple(block), f"one entry a dimension of shape {tuple(shape)}")
        return block
    known = [type(n) is int and type(g) is int for n, g in zip(shape, scale_shape, strict=True)]
    found = iter(block_of_scale(_those(shape, known), _those(scale_shape, known)))
    return [next(found) if one else 1 for one in known]


def _those(sizes: Sequence[Any], wanted: Sequence[bool]) -> tuple[Any, ...]:
    return tuple(n for n, one in zip(sizes, wanted, strict=True) if one)


def _singleton_at(scale: Tensor, rank: int) -> Tensor:
    """A scale of one element may have any rank."""
    return scale if scale.dim() == rank or scale.numel() != 1 else scale.reshape((1,) * rank)


def shape_of(codes: Tensor, fields: Fields) -> tuple[Any, ...]:
    """Of the tensor that codes stand for; packed rows are full unless `last` says how long they are."""
    element = element_of(fields)
    shape, last = tuple(codes.shape), fields.last
    if not shape:
        return shape
    stored = shape[-1]
    room = stored * 8 // element.bits if element.packed else stored
    if last is None:
        return (*shape[:-1], room)
    bytes_of_last = (last * element.bits + 7) // 8 if element.packed else last
    if type(bytes_of_last) is int and type(stored) is int and bytes_of_last != stored:
        raise ShapeError("last", last, f"a length that takes {stored} of {element.name} as stored in a row")
    return (*shape[:-1], last)


def value_of(x: Tensor, fields: Fields, compute: torch.dtype) -> Tensor:
    """An operand as floats."""
    operators = torch.ops.blockscale
    if fields.kind == "float":
        if fields.five != FLOAT.five:
            raise ScaleError("fields", fields.five, "a dtype, or nothing at all for a float edge")
        return x
    if fields.kind == "dynamic":
        edge = edge_of(fields, x.shape, quantizes=True)
        # In order of memory, as what is dequantized: sums may round elsewhere in another order.
        return operators.fake_quantize.default(x, *edge).contiguous()  # type: ignore[no-any-return]
    numbers, block, *params = edge_of(fields, shape := shape_of(x, fields), quantizes=False)
    return operators.dequantize.default(  # type: ignore[no-any-return]
        x, *params, numbers, shape, block, dtype=compute
    )


# ------------------------------------------------------------------------------- the shape of scales


def full_rank(scale: Tensor, rank: int, axis: int) -> Tensor:
    """A 1-D scale of the channels of dimension `axis`, as a view of full rank; what has one element too."""
    if scale.dim() > 1:
        raise ShapeError("scale shape", tuple(scale.shape), "one dimension, or none")
    if not -rank <= axis < rank:
        raise ShapeError("axis", axis, f"from {-rank} to {rank - 1} for a tensor of {rank} dimensions")
    shape = [1] * rank
    shape[axis] = scale.numel()
    return scale.reshape(shape)


def compact(scale: Tensor, layout: Layout) -> Tensor:
    """A full-rank scale without its dimensions of 1, where that says the same (`Layout.has_compact_form`)."""
    if tuple(scale.shape) != layout.scale_shape:
        raise ShapeError("scale shape", tuple(scale.shape), f"{layout.scale_shape} for {layout.shape}")
    return scale.reshape(layout.compact_scale_shape)
