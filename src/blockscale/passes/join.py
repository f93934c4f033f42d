"""Join: a quantize with its dequantize right behind it becomes one fake-quantize, of the same bits.

For targets whose runtime computes on floats: one node reads the tensor once, where two would write codes in
between. The opposite of what canonicalize does with a fake-quantize.
"""

from __future__ import annotations

from blockscale.graph.overlay import Graph
from blockscale.graph.quant import lost_in_codes, quant_of
from blockscale.graph.quantizers import ours
from blockscale.graph.view import Node, Value
from blockscale.passes.log import Log

STAGE = "join"
_RESULTS = ("scale", "zero_point", "tensor_scale")


def run(graph: Graph, log: Log) -> None:
    for node in graph.nodes:
        codes = node.operand(0) if node.kind == "dequantize" else None
        q = codes.producer if codes is not None else None
        if q is None or q.kind != "quantize" or codes is not q.outputs[0]:
            continue
        why = _why_not(graph, q, node)
        if why:
            log.left(STAGE, node, why)
            continue
        _joined(graph, q, node)
        log.did(STAGE, node, f"{q.name} and its dequantize became one")
        graph.discard([node, q])


def _why_not(graph: Graph, q: Node, dq: Node) -> str:
    made, read = quant_of(q), quant_of(dq)
    if made.foreign is not None or read.foreign is not None:
        return f"{(q if made.foreign is not None else dq).call.name} is no operator of ours"
    if (made.numbers, made.block) != (read.numbers, read.block):
        return f"{q.name} before it has another layout"
    lost = lost_in_codes(made.numbers)
    if lost:
        return lost
    x, y = q.operand(0), dq.outputs[0]
    if x is None or x.meta is None or x.meta != y.meta:
        return f"it gives another dtype than {q.name} takes"
    if any(value in graph.mutated for value in (x, y, *q.outputs)):
        return "it shares memory that the graph writes to"
    for i, name in enumerate(_RESULTS, 1):
        if not _is_its(q, dq.operand(i), i, name):
            return f"its {name} is not that of {q.name}"
    return ""


def _is_its(q: Node, value: Value | None, index: int, name: str) -> bool:
    """Whether the dequantize has the parameter with which codes were made."""
    given = q.operand(index)
    if q.operand(1) is not None:
        return value is given
    measured = q.outputs[quant_of(q).outputs.index(name)] if name in quant_of(q).outputs else None
    numbers = quant_of(q).numbers
    exists = {"scale": True, "zero_point": numbers.zero_point, "tensor_scale": numbers.tensor_scale}[name]
    if not exists:
        return value is None or value is measured
    return value is not None and (value is measured or value is given)


def _joined(graph: Graph, q: Node, dq: Node) -> None:
    quant = quant_of(q)
    operands = [q.operand(i) for i in range(4)]
    while operands[-1] is None:
        operands.pop()
    seed = q.params.get("seed", 0)
    params = {"quant": ours(quant.numbers, quant.block, seed)} | ({"seed": seed} if seed else {})
    made = graph.make("fake_quantize", operands, [dq.outputs[0].meta], params, near=dq, name=f"{q.name}_fq")
    graph.replace(dq.outputs[0], made.outputs[0])
