"""Factors beside products: which they are, and constants (of floats, or of codes) times a factor.

A plan is made first, and changes nothing: a function that makes the new value, or the reason for none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from blockscale.graph.ops import reads_size
from blockscale.graph.overlay import Graph
from blockscale.graph.quant import layout_of, quant_of
from blockscale.graph.survival import FORMATS, contents
from blockscale.graph.view import Meta, Node, Value
from blockscale.numerics import native
from blockscale.numerics.moves import Permute, Same, axis_of
from blockscale.numerics.scaled import Nearness, differs, scaled

Plan = Callable[[], Value]


@dataclass(frozen=True)
class Factor:
    """What a mul or div multiplies `x` by: float64, a number or a vector along `axis` of x.

    exact  it is that; otherwise the reciprocal of a divisor, rounded
    """

    node: Node
    x: Value
    array: Any
    axis: int | None
    exact: bool

    @property
    def powers_of_two(self) -> bool:
        return bool((np.frexp(np.abs(self.array))[0] == 0.5).all())


def factor_of(graph: Graph, node: Node) -> Factor | str | None:
    """None where a mul or div has no constant operand."""
    x, other, array = _sides(graph, node)
    if x is None or x.meta is None or array is None:
        return None
    y = node.outputs[0].meta
    if y != x.meta or x.meta.dtype not in FORMATS:
        return "it changes the shape or the dtype"
    if any(v in graph.mutated for v in (x, other, *node.outputs) if v is not None):
        return "it shares memory that the graph writes to"
    array = np.asarray(array).astype(np.float32).astype(np.float64)
    shape = (1,) * (len(x.meta.shape) - array.ndim) + array.shape
    wide = [i for i, n in enumerate(shape) if n != 1]
    if len(wide) > 1 or len(shape) != len(x.meta.shape) or not np.isfinite(array).all():
        return "its factor is no number and no vector along one dimension, or not finite"
    axis = wide[0] if wide else None
    array = array.reshape(-1) if wide else array.reshape(())
    if node.kind == "mul":
        return Factor(node, x, array, axis, True)
    if (array == 0).any():
        return "it divides by 0"
    return Factor(node, x, 1.0 / array, axis, bool((np.frexp(np.abs(array))[0] == 0.5).all()))


def _sides(graph: Graph, node: Node) -> tuple[Value | None, Value | None, Any]:
    """The tensor, the constant operand if it is one, and its contents."""
    a, b = (*node.operands, None, None)[:2]
    if b is None:
        return a, None, node.params.get("factor", node.params.get("divisor"))
    if contents(b) is not None:
        return a, b, contents(b)
    if node.kind == "mul" and contents(a) is not None:
        return b, a, contents(a)
    return a, b, None


def through(move: Any, axis: int | None, shape: tuple[int, ...], back: bool) -> int | str | None:
    """Where a dimension along which a factor differs goes: after `move` on `shape`, or `back` before it."""
    if axis is None or isinstance(move, Same):
        return axis
    if not isinstance(move, Permute):
        return f"the factor is a vector, and {type(move).__name__.lower()} moves its dimension"
    order = [axis_of(d, shape) for d in move.dims]
    return order[axis] if back else order.index(axis)


def alone(value: Value) -> bool:
    """Whether only one node uses its elements."""
    return sum(not reads_size(user) for user in value.users) == 1


# ------------------------------------------------------------------------------ constants


def times(graph: Graph, value: Value, factor: Any, near: Nearness) -> Plan | str:
    """A constant of floats, a dequantize of constants, or such a one permuted, times `factor`."""
    path: list[Node] = []
    while value.producer is not None and isinstance(value.producer.params.get("move"), Permute | Same):
        if not alone(value) or value in graph.mutated:
            return f"{value!r} is used elsewhere too"
        node = value.producer
        move, source = node.params["move"], node.operand(0)
        if source is None or source.meta is None or node.kind == "gather":
            return f"{value!r} is no constant"
        rank = len(source.meta.shape)
        factor = np.reshape(factor, (1,) * (rank - np.ndim(factor)) + np.shape(factor))
        if isinstance(move, Permute):
            factor = np.transpose(factor, np.argsort([d % rank for d in move.dims]))
        path.append(node)
        value = source
    if not alone(value) or value in graph.mutated:
        return f"{value!r} is used elsewhere too"
    base = (
        _quantized(graph, value, factor, near) if value.const is None else _floats(graph, value, factor, near)
    )
    if isinstance(base, str):
        return base

    def make() -> Value:
        made = base()
        for node in reversed(path):
            slots = list(node.slots)
            slot = node.call.operands[0]
            assert slot is not None
            slots[slot] = made
            made = graph.clone(node, slots, [v.meta for v in node.outputs]).outputs[0]
        return made

    return make


def _floats(graph: Graph, value: Value, factor: Any, near: Nearness) -> Plan | str:
    array, meta = contents(value), value.meta
    if array is None or meta is None or meta.dtype not in FORMATS:
        return f"{value!r} is no constant of floats"
    if near == "exact" and not array.flags.c_contiguous:
        return f"{value!r} does not lie in order in memory, and sums are in that order"
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        made = (array.astype(np.float64) * factor).astype(array.dtype)
    why = differs(array, made, factor, near)
    if why:
        return why
    name = value.const.name if value.const is not None else ""
    return lambda: graph.constant(
        np.asarray(made, order="C"), name or value.name, Meta(meta.dtype, made.shape)
    )


def _quantized(graph: Graph, value: Value, factor: Any, near: Nearness) -> Plan | str:
    node = value.producer
    if node is None or node.kind != "dequantize" or quant_of(node).foreign is not None:
        return f"{value!r} is no constant"
    layout = layout_of(node, graph.alphabet)
    if isinstance(layout, str):
        return layout
    if any(v in graph.mutated for v in node.operands if v is not None):
        return f"{value!r} shares memory that the graph writes to"
    arrays = [contents(v) for v in (*node.operands, None, None, None)[:4]]
    given = [v for v in node.operands if v is not None]
    if len([a for a in arrays if a is not None]) != len(given):
        return f"the codes or scales of {value!r} are known only at run time"
    codes, scales, zeros, t = (None if a is not None and a.shape == (0,) else a for a in arrays)
    if codes is None or scales is None or scales.shape != layout.scale_shape:
        return f"the scales of {value!r} are not of full rank"
    stored = native.Stored(scales, zeros, t)
    made = scaled(layout, codes, stored, factor)
    if isinstance(made, str):
        return made
    assert value.meta is not None
    dtype = FORMATS[value.meta.dtype]
    before, after = (native.dequantize(c, layout, p, dtype) for c, p in ((codes, stored), made))
    why = differs(before, after, factor, near)
    if why:
        return why

    def make() -> Value:
        slots = list(node.slots)
        parts = (made[0], made[1].scales, made[1].zero_points, made[1].tensor_scale)
        for slot, old, array in zip(node.call.operands, arrays, parts, strict=False):
            if slot is None or array is None or array is old:
                continue
            source = slots[slot]
            assert source is not None and source.meta is not None
            slots[slot] = graph.constant(array, source.name, source.meta)
        return graph.clone(node, slots, [value.meta]).outputs[0]

    return make
