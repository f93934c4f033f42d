"""The order in which AMD Quark meets the nodes of a model, before and after it has put its quantizers in.

It sorts by onnxruntime's `ONNXModel.topological_sort`: nodes without inputs first, then constants and inputs of the
graph by their names, then each result as it comes; what has all its inputs is next. Where two operators want
different things of one tensor, this order decides.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from blockscale.graph.overlay import Graph
from blockscale.graph.view import Node, Value

Name = Hashable


@dataclass(frozen=True)
class _Item:
    """A node of the model, or a quantizer that it does not have (None)."""

    node: Node | None
    inputs: Sequence[Name]
    outputs: Sequence[Name]


def in_order(graph: Graph) -> list[Node]:
    """The nodes of the graph, without its output."""
    items = [_Item(node, _inputs(node), node.outputs) for node in graph.nodes if node.kind != "output"]
    return [item.node for item in _sorted(items, _given(graph)) if item.node is not None]


def with_quantizers(graph: Graph, marked: Iterable[Value], shared: Mapping[Value, Value]) -> list[Node]:
    """The nodes in the order that they have where the tensors `marked` are quantized.

    A quantizer stands behind its tensor; where that is an output of the model, the quantizer gives it. Those of
    tensors that share the parameters of another are made when the other has its own.
    """
    quantized = dict.fromkeys(marked)
    results = {value for node in graph.nodes if node.kind == "output" for value in node.slots}
    inner = {value: (value, "before") for value in quantized if value in results and value.const is None}
    read = {value: (value, "after") for value in quantized if value not in inner}
    items = [
        _Item(
            node,
            [read.get(value, value) for value in _inputs(node)],
            [inner.get(value, value) for value in node.outputs],
        )
        for node in in_order(graph)
    ]
    for value in _as_made(quantized, shared):
        source, result = (inner[value], value) if value in inner else (value, read[value])
        items.append(_Item(None, [source], [result]))
    return [item.node for item in _sorted(items, _given(graph)) if item.node is not None]


def _as_made(quantized: Iterable[Value], shared: Mapping[Value, Value]) -> list[Value]:
    made = dict.fromkeys(value for value in quantized if value not in shared)
    waiting = [value for value in quantized if value in shared]
    while waiting:
        ready = []
        for value in waiting:
            if shared[value] in made:
                made[value] = None
                ready.append(value)
        if not ready:  # what they share with has no quantizer
            made.update(dict.fromkeys(waiting))
            break
        waiting = [value for value in waiting if value not in made]
    return list(made)


def _inputs(node: Node) -> list[Value]:
    """Without what its bodies take."""
    return [value for value in node.slots[: len(node.origin.inputs)] if value is not None]


def _given(graph: Graph) -> list[Value]:
    return sorted((*graph.constants, *graph.inputs), key=lambda value: value.name)


def _sorted(items: Sequence[_Item], given: Sequence[Value]) -> list[_Item]:
    waits = [len(item.inputs) for item in items]
    readers: dict[Name, list[int]] = {}
    for number, item in enumerate(items):
        for name in item.inputs:
            readers.setdefault(name, []).append(number)
    order = [item for item, count in zip(items, waits, strict=True) if not count]

    def arrived(name: Name) -> None:
        for number in readers.get(name, ()):
            waits[number] -= 1
            if not waits[number]:
                order.append(items[number])

    for value in given:
        arrived(value)
    for item in order:  # grows on the way
        for name in item.outputs:
            arrived(name)
    return order
