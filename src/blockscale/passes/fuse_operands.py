"""Operators with the dequantizes of their operands and the quantize of their result become one.

    y = quantize(linear(dequantize(x), dequantize(w), b))   →   y = blockscale.linear(x, w, b, …)

A dequantize stays for those who use its floats; a quantize of a result that is used as floats too stays. An
operand that is quantized by its own measure, for this operator alone, is quantized in it. The fused operator
is defined by the graph that it stands for, so no bit changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockscale.graph.fused_edges import Edges, arithmetic_of, quantized_by
from blockscale.graph.fused_nodes import FLOATS, Core, Edge, is_fused, make
from blockscale.graph.fused_said import Said, as_linear, said
from blockscale.graph.ops import SILENT, moves
from blockscale.graph.overlay import Graph
from blockscale.graph.view import Meta, Node, Value
from blockscale.passes.log import Log

STAGE = "fuse_operands"
_MADE_OF = ("dequantize", "fake_quantize")


def run(graph: Graph, log: Log) -> None:
    for node in graph.nodes:
        if node in graph and _is_candidate(node):
            _fuse(graph, node, log)
    told = {entry.node for entry in log.entries if entry.stage == STAGE}
    for node in graph.nodes:
        x = node.operand(0) if node.kind == "quantize" and node.name not in told else None
        if x is not None:
            maker = "is an input" if x.producer is None else f"is made by {x.producer.call.name}"
            log.left(
                STAGE, node, f"it stands alone: {x!r} {maker}, and several or none can measure it themselves"
            )


def _is_candidate(node: Node) -> bool:
    """Whether anything around it quantizes."""
    if not node.outputs or not node.call.pure or "quant" in node.params or is_fused(node):
        return False
    makers = (v.producer for v in node.slots if v is not None)
    return any(one is not None and one.kind in _MADE_OF for one in makers) or any(
        user.kind == "quantize" for user in node.outputs[0].users
    )


def _fuse(graph: Graph, node: Node, log: Log) -> None:
    q = quantized_by(graph, node.outputs[0])
    if isinstance(q, Node):
        why = _fused(graph, node, q, log)
        if not why:
            return
        log.left(STAGE, q, why)
    elif q is not None:
        log.left(STAGE, node, f"its result stays floats: {q}")
    why = _fused(graph, node, None, log)
    if why and node.kind not in SILENT and not moves(node):
        log.left(STAGE, node, why)


def _fused(graph: Graph, node: Node, q: Node | None, log: Log) -> str:
    """With `q` as its output. Why not; empty where it was done, or where there is nothing to fuse."""
    found = said(graph, node, quantized=q is not None)
    if isinstance(found, str):
        return found
    found = as_linear(graph, found)
    dtype = arithmetic_of(found.operands, node.outputs[0])
    if dtype is None:
        return "its operands and its result are not of one float dtype that fused operators take"
    why = _why_not(graph, node)
    if why:
        return why
    edges = Edges(graph, found.row, dtype)
    operands = edges.operands(found.operands)
    out = (FLOATS, [node.outputs[0].meta]) if q is None else edges.output(q)
    if isinstance(out, str):
        return out
    for other, reason in edges.left:
        log.left(STAGE, other, f"not an operand of {node.name}: {reason}")
    if q is not None or any(edge.port is not None for edge in operands):
        _replace(graph, node, q, found, operands, out, dtype, log)
    return ""


def _why_not(graph: Graph, node: Node) -> str:
    if any(value.used for value in node.outputs[1:]):
        return "its other results are used"
    if any(v in graph.mutated for v in (*node.slots, *node.outputs) if v is not None):
        return "it shares memory that the graph writes to"
    return ""


def _replace(
    graph: Graph, node: Node, q: Node | None, found: Said, operands: Sequence[Edge],
    out: tuple[Edge, list[Meta | None]], dtype: str, log: Log,
) -> None:  # fmt: skip
    edge, metas = out
    last = node if q is None else q
    core = Core((node,), (*found.operands, *found.tensors), (node.outputs[0],))
    made = make(
        graph, found.row.name, operands, edge, metas, found.settings, core, tensors=found.tensors, compute=dtype,
        near=node,
    )  # fmt: skip
    old: Sequence[Value] = node.outputs[:1] if q is None else q.outputs
    for before, after in zip(old, made.outputs, strict=True):
        graph.replace(before, after)
    quantized = [o.name for o, e in zip(found.row.operands, operands, strict=True) if e.port is not None]
    parts = [*quantized, *(["its result"] if q is not None else [])]
    log.did(STAGE, node, f"became {found.row.kind} with {', '.join(parts)} quantized")
    graph.discard([last, node])
