"""A dequantize with a quantize right behind it becomes one requantize of codes; both roundings stay.

Those that undo each other are gone before: see absorb.
"""

from __future__ import annotations

from blockscale.graph.fused import RESULTS, row_named
from blockscale.graph.fused_edges import Edges, source_of
from blockscale.graph.fused_nodes import Core, is_plain_quantize, make
from blockscale.graph.overlay import Graph
from blockscale.graph.quant import quant_of
from blockscale.graph.view import Node, Value
from blockscale.passes.log import Log

STAGE = "requantize"


def run(graph: Graph, log: Log) -> None:
    for node in graph.nodes:
        value = source_of(node.operand(0)) if node.kind == "quantize" and node in graph else None
        if value is None or value.producer is None or value.producer.kind != "dequantize":
            continue
        before, after = quant_of(value.producer).numbers, quant_of(node).numbers
        why = _requantize(graph, value, node)
        if why:
            log.left(STAGE, node, why)
        else:
            log.did(STAGE, node, f"codes of {before} become codes of {after}")
            graph.discard([node])


def _requantize(graph: Graph, value: Value, q: Node) -> str:
    """Why not; empty where it was done."""
    row, quant = row_named(STAGE), quant_of(q)
    if row.name not in graph.fusible:
        return f"blockscale.{row.name} cannot be written into this model"
    if quant.foreign is not None:
        return f"{q.call.name} is no operator of ours"
    if not is_plain_quantize(quant) or (quant.outputs == RESULTS) != (q.operand(1) is None):
        return f"it gives {', '.join(quant.outputs)}"
    if not q.call.pure or q.operand(0) in graph.mutated:
        return "it shares memory that the graph writes to"
    assert value.meta is not None
    edges = Edges(graph, row, value.meta.dtype, measures=False)
    operands, out = edges.operands([value]), edges.output(q)
    if isinstance(out, str) or edges.left:
        return out if isinstance(out, str) else edges.left[0][1]
    edge, metas = out
    core = Core((), (value,), (value,))
    made = make(graph, row.name, operands, edge, metas, {}, core, compute=value.meta.dtype, near=q)
    for old, new in zip(q.outputs, made.outputs, strict=True):
        graph.replace(old, new)
    return ""
