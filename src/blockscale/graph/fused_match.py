"""Norms that a graph spells out, found by the forms of `fused_forms`: what writes them is what they look like.

A form run on a `Sketch` is a pattern. It is matched from the result backwards, by kinds and params, so that it
is the same for every kind of model. Other spellings of the same bits match too: operands of a sum or product
in the other order, x·x for x², a constant for a number, a cast that arithmetic implies, and whatever gives on
its operand as it is. 1/√x is rsqrt where models have no such operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from blockscale.graph.fused import row_named
from blockscale.graph.fused_edges import source_of
from blockscale.graph.fused_forms import COMPOSITIONS
from blockscale.graph.ops import KIND_OF_ATEN
from blockscale.graph.view import NOTHING, Node, Value

EPS, FEATURES = "eps", "features"
_NARROW = ("bfloat16", "float16")


@dataclass(frozen=True, eq=False)
class Leaf:
    """An operand of the form."""

    name: str


@dataclass(frozen=True, eq=False)
class Step:
    kind: str
    operands: tuple[Pattern, ...]
    settings: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Cast:
    """In a dtype, or in that of a leaf."""

    x: Pattern
    like: str | Leaf


Pattern = Leaf | Step | Cast


class Sketch:
    """A `fused_forms.Builder` that remembers what it was told."""

    def call(
        self, name: str, operands: Sequence[Pattern | None], settings: Mapping[str, Any] | None = None
    ) -> Pattern:
        present = tuple(one for one in operands if one is not None)
        return Step(KIND_OF_ATEN[name].kind, present, settings or NOTHING)

    def cast(self, x: Pattern, like: Pattern | str) -> Pattern:
        assert isinstance(like, str | Leaf)
        return Cast(x, like)


@cache
def pattern_of(name: str, form: str, present: tuple[str, ...]) -> Pattern:
    """Of the row `name`, with the operands `present` (by the names of the form)."""
    leaves = {one.aten: Leaf(one.aten) if one.aten in present else None for one in row_named(name).operands}
    made: Pattern = COMPOSITIONS[name](
        Sketch(), **leaves, normalized_shape=(FEATURES,), eps=EPS, form=form
    )  # fmt: skip
    return made


@cache
def ends_with(pattern: Pattern) -> str:
    """The kind of the operator that gives the result, but for a cast."""
    while isinstance(pattern, Cast):
        pattern = pattern.x
    return pattern.kind if isinstance(pattern, Step) else ""


@dataclass(frozen=True)
class Found:
    """leaves by name; eps; how many dimensions are normalized; the nodes that do it, the last one first."""

    leaves: Mapping[str, Value] = field(default_factory=dict)
    eps: float | None = None
    features: int | None = None
    nodes: tuple[Node, ...] = ()
    casts: tuple[tuple[str, str], ...] = ()  # dtypes that those of leaves have to be

    def with_node(self, node: Node) -> Found:
        return Found(self.leaves, self.eps, self.features, (*self.nodes, node), self.casts)


def match(pattern: Pattern, value: Value) -> Iterator[Found]:
    """The ways in which `value` is what the pattern computes."""
    for found in _match(pattern, value, Found()):
        if all(_dtype(found.leaves[name]) == dtype for name, dtype in found.casts):
            yield found


def _match(pattern: Pattern, value: Value, so_far: Found) -> Iterator[Found]:
    if isinstance(pattern, Leaf):
        bound = so_far.leaves.get(pattern.name)
        if bound is None:
            leaves = {**so_far.leaves, pattern.name: _source(value)}
            yield Found(leaves, so_far.eps, so_far.features, so_far.nodes, so_far.casts)
        elif bound is _source(value):
            yield so_far
        return
    if isinstance(pattern, Cast):
        yield from _cast(pattern, value, so_far)
        return
    found, behind = _behind(value, so_far)
    node = behind.producer
    if node is not None and node.call.pure:
        yield from _STEPS[pattern.kind](pattern, node, found.with_node(node))


def _source(value: Value) -> Value:
    return source_of(value, as_it_lies=True) or value


def _behind(value: Value, so_far: Found) -> tuple[Found, Value]:
    """Past what gives on its operand; those nodes belong to the norm."""
    end = _source(value)
    while value is not end and value.producer is not None:
        so_far = so_far.with_node(value.producer)
        value = value.producer.operand(0) or value
    return so_far, value


def _cast(pattern: Cast, value: Value, so_far: Found) -> Iterator[Found]:
    dtype = _dtype(value)
    if isinstance(pattern.like, Leaf):
        casts = (*so_far.casts, (pattern.like.name, dtype))
        so_far = Found(so_far.leaves, so_far.eps, so_far.features, so_far.nodes, casts)
    elif dtype != pattern.like:
        return
    found, behind = _behind(value, so_far)
    node = behind.producer
    if node is not None and node.kind == "cast" and node.call.pure:
        source = node.operand(0)
        if source is not None:
            yield from _match(pattern.x, source, found.with_node(node))
    yield from _match(pattern.x, value, so_far)


def _dtype(value: Value) -> str:
    return value.meta.dtype if value.meta is not None else ""


# ----------------------------------------------------------------------------------------------- steps

Steps = Callable[[Step, Node, Found], Iterator[Found]]


def _operands(step: Step, values: Sequence[Value | None], node: Node, found: Found) -> Iterator[Found]:
    """In this order; arithmetic of two dtypes casts the narrower one."""
    pattern, value = step.operands[0], values[0]
    if value is None:
        return
    for one in _implied(pattern, value, node, found):
        if len(step.operands) == 1:
            yield one
        elif values[1] is not None:
            yield from _implied(step.operands[1], values[1], node, one)


def _implied(pattern: Pattern, value: Value, node: Node, found: Found) -> Iterator[Found]:
    result = _dtype(node.outputs[0])
    if _dtype(value) == result:
        yield from _match(pattern, value, found)
    elif isinstance(pattern, Cast) and pattern.like == result and _dtype(value) in _NARROW:
        yield from _match(pattern.x, value, found)


def _binary(kind: str, *, commutes: bool) -> Steps:
    def steps(step: Step, node: Node, found: Found) -> Iterator[Found]:
        values = node.operands
        if node.kind != kind or len(values) != 2 or any(v is None for v in values):
            return
        yield from _operands(step, values, node, found)
        if commutes and values[0] is not values[1]:
            yield from _operands(step, values[::-1], node, found)

    return steps


def _add(step: Step, node: Node, found: Found) -> Iterator[Found]:
    if len(step.operands) == 2:
        yield from _binary("add", commutes=True)(step, node, found)
        return
    if node.kind != "add":
        return
    for value, number in _with_number(node):
        wanted = step.settings["other"]
        if wanted != EPS:
            if number == wanted:
                yield from _operands(step, [value], node, found)
        elif found.eps in (None, number) and math.isfinite(number):
            known = Found(found.leaves, number, found.features, found.nodes, found.casts)
            yield from _operands(step, [value], node, known)


def _with_number(node: Node) -> Iterator[tuple[Value, float]]:
    """The operand that a number is added to, multiplied with, …, and the number."""
    first, second = (*node.operands, None)[:2]
    if first is None:
        return
    if second is None:
        if "factor" in node.params:
            yield first, node.params["factor"]
        return
    for value, other in ((first, second), (second, first)):
        number = number_of(other)
        result = node.outputs[0].meta
        if (
            number is not None
            and value.meta is not None
            and result is not None
            and result.shape == value.meta.shape
        ):
            yield value, number


def number_of(value: Value | None) -> float | None:
    """The one number of a constant."""
    if value is None or value.const is None or value.meta is None or set(value.meta.shape) - {1}:
        return None
    if value.meta.dtype not in ("float64", "float32", *_NARROW):
        return None
    return float(np.asarray(value.const.fetch()).reshape(-1)[0])


def _square(step: Step, node: Node, found: Found) -> Iterator[Found]:
    first, second = (*node.operands, None)[:2]
    squared = node.kind == "pow" and node.params.get("exponent") == step.settings["exponent"]
    if squared or (node.kind == "mul" and first is second):
        yield from _operands(step, [first], node, found)


def _mean(step: Step, node: Node, found: Found) -> Iterator[Found]:
    x = node.operand(0)
    if node.kind != "mean" or not node.params.get("keepdim") or x is None or x.meta is None:
        return
    rank, dims = len(x.meta.shape), node.params.get("dim")
    if not dims:
        return
    axes = sorted(d % rank for d in dims)
    features = len(axes)
    if axes != list(range(rank - features, rank)) or found.features not in (None, features):
        return
    known = Found(found.leaves, found.eps, features, found.nodes, found.casts)
    yield from _operands(step, [x], node, known)


def _root(step: Step, node: Node, found: Found) -> Iterator[Found]:
    if node.kind == "sqrt":
        yield from _operands(step, [node.operand(0)], node, found)


def _inverse_root(step: Step, node: Node, found: Found) -> Iterator[Found]:
    if node.kind == "rsqrt":
        yield from _operands(step, [node.operand(0)], node, found)
        return
    if node.call.name in KIND_OF_ATEN:
        return  # whose rsqrt does not round as 1/√ does; where there is none, 1/√ is the way to say it
    below = None
    if node.kind == "reciprocal":
        below = node.operand(0)
    elif node.kind == "div" and number_of(node.operand(0)) == 1:
        below = node.operand(1)
    if below is None:
        return
    found, below = _behind(below, found)
    if below.producer is not None and below.producer.call.pure:
        yield from _root(step, below.producer, found.with_node(below.producer))


_STEPS: dict[str, Steps] = {
    "mul": _binary("mul", commutes=True), "sub": _binary("sub", commutes=False),
    "div": _binary("div", commutes=False), "add": _add, "pow": _square, "mean": _mean, "sqrt": _root,
    "rsqrt": _inverse_root,
}  # fmt: skip
