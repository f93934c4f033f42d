"""Whether codes survive a dequantize and a quantize of the same numbers: `numerics.round_trip` for nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from blockscale.graph.quant import quant_of
from blockscale.graph.view import Node, Value
from blockscale.numerics import native, round_trip
from blockscale.numerics.scheme import Numbers

FORMATS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def numbers_alike(node: Node) -> Numbers:
    """What it says of numbers beside where its scales come from."""
    return replace(quant_of(node).numbers, dynamic=True)


def dtype_of(value: Value | None) -> str:
    return "" if value is None or value.meta is None else value.meta.dtype


def contents(value: Value | None) -> Any:
    """Of a constant; None for all else."""
    return None if value is None or value.const is None else np.asarray(value.const.fetch())


def same_contents(a: Value | None, b: Value | None) -> bool:
    """The same tensor, or constants with the same bits; a zero point of shape (0,) is none."""
    if a is b:
        return True
    arrays = [contents(v) if v is not None else np.empty(0) for v in (a, b)]
    if any(array is None for array in arrays):
        return False
    one, other = arrays
    if one.size == other.size == 0:
        return True
    same_shape = one.shape == other.shape or one.size == other.size == 1
    return bool(same_shape and one.dtype == other.dtype and one.tobytes() == other.tobytes())


def static_loss(node: Node, source: Node) -> str:
    """Why some code of the dequantize `source` is not what the quantize `node` makes of it; empty if all are.

    Both have the same given parameters.
    """
    codes, scale, zero, t = (*source.operands, None, None, None)[:4]
    assert codes is not None and scale is not None
    scales, zeros, tensor_scale = contents(scale), contents(zero), contents(t)
    if scales is None and quant_of(source).numbers.scale == "e8m0":
        scales = np.arange(256, dtype=np.uint8)
    for value, array in ((scale, scales), (zero, zeros), (t, tensor_scale)):
        if value is not None and array is None:
            return f"{value!r} is known only at run time, and values might overflow"
    if zeros is not None and zeros.shape == (0,):
        zeros = None
    if tensor_scale is not None and tensor_scale.shape == (0,):
        tensor_scale = None
    stored = native.Stored(scales, zeros, tensor_scale)
    format_ = FORMATS[dtype_of(node.operand(0))]
    return round_trip.lost(quant_of(source).numbers, stored, format_, _made(source))


def _made(source: Node) -> bool:
    """Whether its codes come out of a quantize of its numbers and parameters, which does not give every code."""
    codes = source.operand(0)
    first = codes.producer if codes is not None else None
    if first is None or first.kind != "quantize" or numbers_alike(first) != numbers_alike(source):
        return False
    pairs = [(first.operand(i), source.operand(i)) for i in (1, 2, 3)]
    if first.operand(1) is not None:
        return all(same_contents(a, b) for a, b in pairs)
    return all(b is None or b in first.outputs for _, b in pairs)


def dynamic_loss(node: Node, source: Node) -> str:
    """Why Q(DQ(Q(x))), of which `node` is the last, may not be Q(x); empty if it is, with all its outputs."""
    codes = source.operand(0)
    first = codes.producer if codes is not None else None
    if first is None or first.kind != "quantize" or quant_of(first) != quant_of(node):
        return "its scales are measured, and the codes below do not come from its equal"
    outputs = dict(zip(quant_of(first).outputs, first.outputs, strict=False))
    made = [outputs.get(name) for name in ("codes", "scale", "zero_point", "tensor_scale")]
    if first.operand(1) is not None or any(v not in made for v in source.operands if v is not None):
        return "its scales are measured, those below are others"
    x, y = first.operand(0), node.operand(0)
    if quant_of(source).block != quant_of(node).block or dtype_of(x) != dtype_of(y):
        return "its scales are measured in other blocks"
    return round_trip.drifts(quant_of(node).numbers, FORMATS[dtype_of(y)])
