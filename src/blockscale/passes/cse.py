"""Combine: equal nodes become one, by value numbers.

Two nodes are equal when their operators, their canonical arguments and the numbers of their operands are;
small constants are equal by contents, so two buffers with the same scale are one. Random operators and
operators with effects are never combined, nor is what reads memory that the graph writes to.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from blockscale.graph.overlay import Graph
from blockscale.graph.view import Node, Value
from blockscale.passes.log import Log

STAGE = "cse"
LARGEST = 1 << 16  # elements of a constant that is compared by contents


def run(graph: Graph, log: Log) -> None:
    number_of: dict[Value, Hashable] = {}
    first: dict[Hashable, Node] = {}
    contents: dict[Hashable, int] = {}
    for value in graph.constants:
        number_of[value] = _contents(value, contents)
    for node in graph.nodes:
        numbers = tuple([None if v is None else number_of.get(v, v) for v in node.slots])
        key = _key(graph, node, numbers)
        twin = first.get(key) if key is not None else None
        if twin is not None and _metas(twin) == _metas(node):
            for mine, its in zip(node.outputs, twin.outputs, strict=True):
                number_of[mine] = number_of.get(its, its)
                graph.replace(mine, its)
            if node.kind in ("quantize", "dequantize", "fake_quantize"):
                log.did(STAGE, node, f"combined with {twin.name}")
            continue
        if key is not None:
            first[key] = node
        if node.kind == "identity" and node.call.pure and len(node.outputs) == 1 and numbers:
            number_of[node.outputs[0]] = numbers[0] if numbers[0] is not None else node.outputs[0]


def _key(graph: Graph, node: Node, numbers: tuple[Hashable, ...]) -> Hashable | None:
    """None where the node must stay as it is."""
    call = node.call
    if not call.pure or call.kind in ("output", "assert") or not node.outputs:
        return None
    if graph.mutated and any(v in graph.mutated for v in (*node.slots, *node.outputs) if v is not None):
        return None
    params = call.params
    if "quant" in params:
        if params["quant"].numbers.rounding == "stochastic":
            return None
        operands = tuple(None if slot is None else numbers[slot] for slot in call.operands)
        return call.kind, call.name, operands, params["quant"], _hashable(params)
    if "move" in params:  # whoever's operator it is, and however it says its sizes
        operands = tuple(None if slot is None else numbers[slot] for slot in call.operands)
        return call.kind, operands, params["move"]
    made = node.made_by
    if made is None:
        return call.name, numbers, graph.arguments(node)
    if made.like is None:
        return call.kind, call.operands, numbers, _hashable(params)
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
