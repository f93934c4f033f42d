"""Which values of a graph are known before the run: constants, and what pure operators make of them.

A constant repeated as often as only the run says is one as well: its elements are known.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from blockscale.graph.overlay import Graph
from blockscale.graph.view import Const, Value
from blockscale.numerics.moves import Cat, Split


class Constants:
    """Of one graph, as it is now."""

    def __init__(self, graph: Graph) -> None:
        self._found: set[Value] = {
            v for v in graph.constants if v.const is not None and v not in graph.mutated
        }
        for node in graph.nodes:
            read = node.operands if "move" in node.params else node.slots  # not the sizes of an expand
            if node.call.pure and all(v is not None and v in self._found for v in read):
                self._found.update(v for v in node.outputs if v not in graph.mutated)

    def is_constant(self, value: Value) -> bool:
        return value in self._found

    def name(self, value: Value) -> str:
        """That of the largest constant that it is computed from: of a transposed weight, the weight's."""
        roots: dict[Value, int] = {}
        pending, seen = [value], {value}
        while pending:
            one = pending.pop()
            if one.const is not None:
                sizes = one.meta.shape if one.meta is not None else ()
                roots[one] = prod(n for n in sizes if isinstance(n, int))
            elif one.producer is not None:
                new = [v for v in one.producer.slots if v is not None and v not in seen]
                seen.update(new)
                pending += new
        return max(roots, key=roots.__getitem__).name if roots else value.name


def placed(graph: Graph, value: Value) -> Const | None:
    """The contents of a constant, or of one whose elements were only put elsewhere."""
    if value in graph.mutated:
        return None
    if value.const is not None or value.producer is None or "move" not in value.producer.params:
        return value.const
    if value.meta is None or not all(isinstance(n, int) for n in value.meta.shape):
        return None  # repeated as often as only the run says
    node, move = value.producer, value.producer.params["move"]
    operands = node.operands[:1] if node.kind == "gather" else node.operands
    found = [placed(graph, operand) for operand in operands if operand is not None]
    sources = [const for const in found if const is not None]
    if len(sources) != len(operands):
        return None

    def fetch() -> Any:
        parts = [np.asarray(const.fetch()) for const in sources]
        made = move.apply(parts if isinstance(move, Cat) else parts[0])
        return made[value.index] if isinstance(move, Split) else made

    return Const(fetch, sources[0].name)
