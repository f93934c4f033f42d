"""Fused operators as nodes of the view.

    kind      "fused." and the name of the row: "fused.linear"
    operands  the row's operands, its other tensors, then (scale, zero_point) of each operand and of the output
    params    ports     for each operand a Port, or None for a float edge
              out       the same of the output
              settings  the other arguments, (name, value) pairs in order of name
              compute   dtype of the arithmetic, "float32"
    outputs   codes or floats; where the output is dynamic codes, scale, zero_point, tensor_scale; then `also`

A port without a scale operand is dynamic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blockscale.graph.dims import Dims
from blockscale.graph.fused import PREFIX, RESULTS, Fused, row_named
from blockscale.graph.overlay import Graph
from blockscale.graph.quant import Quant, codes_dims, layout_of, logical_meta, quant_of
from blockscale.graph.view import Meta, Node, Value
from blockscale.numerics.scheme import Numbers


@dataclass(frozen=True)
class Port:
    """How an operand or an output is quantized; `shape` is that of its values."""

    numbers: Numbers
    block: tuple[int, ...]
    shape: Dims


@dataclass(frozen=True)
class Edge:
    """One operand of a fused node, or (without a value) its output.

    value is codes where there is a scale; floats without a port, and where the port is dynamic.
    """

    value: Value | None = None
    port: Port | None = None
    scale: Value | None = None
    zero_point: Value | None = None
    tensor_scale: Value | None = None

    @property
    def slot(self) -> Value | None:
        """What lies in the place of the zero point."""
        if self.port is None:
            return None
        numbers = self.port.numbers
        return self.tensor_scale if numbers.tensor_scale else self.zero_point if numbers.zero_point else None


@dataclass(frozen=True)
class Core:
    """What a fused node takes the place of, for adapters that write it as a function of these very nodes.

    nodes    between the dequantizes of its operands and the quantize of its result
    values   its operands and its other tensors as these nodes take them, in order
    results  its result before it is quantized, then `also`
    """

    nodes: tuple[Node, ...]
    values: tuple[Value | None, ...]
    results: tuple[Value, ...]


FLOATS = Edge()


def is_fused(node: Node) -> bool:
    return node.kind.startswith(PREFIX)


def make(
    graph: Graph, name: str, edges: Sequence[Edge], out: Edge, metas: Sequence[Meta | None],
    settings: Mapping[str, Any], core: Core, *, tensors: Sequence[Value | None] = (), compute: str = "float32",
    near: Node,
) -> Node:  # fmt: skip
    """A new fused node, named for `near`; `settings` has the arguments that are not the default."""
    row = row_named(name)
    operands = [edge.value for edge in edges] + list(tensors)
    for edge in (*edges, out):
        operands += [edge.scale, edge.slot]
    params = {
        "ports": tuple(edge.port for edge in edges), "out": out.port, "settings": frozen(settings),
        "compute": compute,
    }  # fmt: skip
    said = near.outputs[0].name if near.outputs else near.name  # nodes of ONNX need not have one
    made = graph.make(row.kind, operands, metas, params, near=near, name=said)
    graph.stand_for(made, core)
    return made


def frozen(settings: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, _frozen(value)) for name, value in sorted(settings.items()))


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class Read:
    """The parts of a fused node."""

    row: Fused
    edges: tuple[Edge, ...]
    tensors: tuple[Value | None, ...]
    out: Edge
    settings: dict[str, Any]
    compute: str


def read(node: Node) -> Read:
    row, params = row_named(node.kind), node.params
    operands = node.operands
    count, first = len(row.operands), len(row.operands) + len(row.rest_tensors)
    pairs = list(zip(operands[first::2], operands[first + 1 :: 2], strict=True))
    values = [*operands[:count], None]
    ports = [*params["ports"], params["out"]]
    edges = []
    for value, port, (scale, slot) in zip(values, ports, pairs, strict=True):
        two_levels = port is not None and port.numbers.tensor_scale
        zero, t = (None, slot) if two_levels else (slot, None)
        edges.append(Edge(value, port, scale, zero, t))
    return Read(
        row, tuple(edges[:-1]), tuple(operands[count:first]), edges[-1], dict(params["settings"]),
        params["compute"],
    )  # fmt: skip


# ----------------------------------------------------------------- what quantizing nodes become


def edge_of(graph: Graph, node: Node) -> Edge | str:
    """A dequantize as an operand, or a quantize as an output; or why it cannot be one."""
    quant, meta = quant_of(node), logical_meta(node)
    layout = layout_of(node, graph.alphabet)
    if isinstance(layout, str):
        return layout
    assert meta is not None
    if quant.foreign is not None:
        return f"{node.call.name} is no operator of ours"
    if any(value in graph.mutated for value in (*node.operands, *node.outputs) if value is not None):
        return f"{node.name} shares memory that the graph writes to"
    dims = codes_dims(meta.shape, quant.numbers)
    if isinstance(dims, str):
        return dims
    scale, zero, t = (*node.operands[1:], None, None, None)[:3]
    value = node.operand(0) if node.kind == "dequantize" else None
    if t is not None and t.meta is not None and t.meta.shape == (0,):
        t = None
    return Edge(value, Port(quant.numbers, layout.block, meta.shape), scale, zero, t)


def outputs_of(node: Node, row: Fused) -> dict[str, Value]:
    """The outputs of a fused node by name."""
    names = RESULTS if len(node.outputs) == len(RESULTS) + len(row.also) else ("out",)
    return dict(zip((*names, *row.also), node.outputs, strict=True))


def is_plain_quantize(quant: Quant) -> bool:
    """Whether its outputs are those of a fused operator."""
    return quant.outputs in (("codes",), RESULTS)
