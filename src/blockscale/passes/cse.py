"""Combine: equal nodes become one, by value numbers.

Two nodes are equal when their operators, their canonical arguments and the numbers of their operands are;
small constants are equal by contents, so two buffers with the same scale are one. Random operators and
operators with effects are never combined, nor is what reads memory that the graph writes to.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from blockscale.graph.canonical import canonical
from blockscale.graph.ops import QUANTIZERS
from blockscale.graph.overlay import Graph
from blockscale.graph.view import Node, Value
from blockscale.numerics.moves import Move, Same
from blockscale.passes.log import Log

STAGE = "cse"
LARGEST = 1 << 16  # elements of a constant that is compared by contents


def run(graph: Graph, log: Log) -> None:
    number_of: dict[Value, Hashable] = {}
    first: dict[Hashable, Node] = {}
    contents: dict[Hashable, int] = {}
    for value in graph.constants:
        number_of[value] = _contents(value, contents)
    _share_parameters(graph, number_of)
    for node in graph.nodes:
        if not _combines(graph, node):
            continue
        numbers = tuple([None if v is None else number_of.get(v, v) for v in node.slots])
        move = _move(graph, node)
        if isinstance(move, Same):  # it stays, for its strides, but what it gives is what it gets
            number_of[node.outputs[0]] = _operands(node, numbers)[0]
            continue
        key = _key(graph, node, numbers, move)
        twin = first.setdefault(key, node)
        if twin is node or _metas(twin) != _metas(node):
            continue
        for mine, its in zip(node.outputs, twin.outputs, strict=True):
            number_of[mine] = number_of.get(its, its)
            graph.replace(mine, its)
        if node.kind in QUANTIZERS:
            log.did(STAGE, node, f"combined with {twin.name}")


def _share_parameters(graph: Graph, number_of: Mapping[Value, Hashable]) -> None:
    """Equal scales and zero points are one value, so that quantizes which differ in nothing else may meet."""
    first: dict[Hashable, Value] = {}
    for node in graph.nodes:
        if node.kind not in QUANTIZERS:
            continue
        for slot in node.call.operands[1:]:
            value = None if slot is None else node.slots[slot]
            if (
                slot is not None
                and value is not None
                and value.const is not None
                and value not in graph.mutated
            ):
                graph.set_slot(node, slot, first.setdefault(number_of.get(value, value), value))


def _combines(graph: Graph, node: Node) -> bool:
    """Whether an equal node gives the same, whenever it runs."""
    call = node.call
    if not call.pure or call.kind in ("output", "assert") or not node.outputs:
        return False
    if graph.mutated and any(v in graph.mutated for v in (*node.slots, *node.outputs) if v is not None):
        return False
    return "quant" not in call.params or call.params["quant"].numbers.rounding != "stochastic"


def _move(graph: Graph, node: Node) -> Move | None:
    """Its move in the one spelling that equal moves share."""
    move: Move | None = node.params.get("move")
    first = node.operand(0) if node.call.operands else None
    if move is None or first is None or first.meta is None:
        return move
    return canonical(move, graph.alphabet.numbers(first.meta.shape), graph.alphabet)


def _operands(node: Node, numbers: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
    return tuple([None if slot is None else numbers[slot] for slot in node.call.operands])


def _key(graph: Graph, node: Node, numbers: tuple[Hashable, ...], move: Move | None) -> Hashable:
    call = node.call
    if move is not None:  # whoever's operator it is, and however it says its sizes
        return call.kind, _operands(node, numbers), move
    if "quant" in call.params:
        return call.kind, call.name, _operands(node, numbers), _hashable(call.params)
    made = node.made_by
    if made is None:
        return call.name, numbers, graph.arguments(node)
    if made.like is None:
        return call.kind, call.operands, numbers, _hashable(call.params)
    return made.like.call.name, numbers, graph.arguments(made.like), _hashable(made.changes)


def _hashable(value: Any) -> Hashable:
    if isinstance(value, Mapping):
        return tuple((key, _hashable(item)) for key, item in sorted(value.items()))
    if isinstance(value, list | tuple):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, float):
        return repr(value)
    return type(value).__name__, value


def _metas(node: Node) -> list[Any]:
    return [value.meta for value in node.outputs]


def _contents(value: Value, seen: dict[Hashable, int]) -> Hashable:
    """A number that equal small constants share."""
    meta = value.meta
    if value.const is None or meta is None:
        return value
    size = 1
    for n in meta.shape:
        if not isinstance(n, int):
            return value
        size *= n
    if size > LARGEST:
        return value
    array = np.ascontiguousarray(value.const.fetch())
    key = (meta.dtype, meta.shape, array.tobytes())
    return "constant", seen.setdefault(key, len(seen))
