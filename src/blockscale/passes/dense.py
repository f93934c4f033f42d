"""Dense: a weight whose packed rows would be mostly padding is quantized with its blocked dimension last.

Codes are packed along the last dimension, and each row of it starts a byte. A convolution has 3 elements there,
or 1, of which packed codes of 4 bits have 2 bytes, or 1. With the channels last rows are long, blocks lie in one
piece, and a transpose puts the values back where they were.
"""

from __future__ import annotations

from blockscale.graph.constants import placed
from blockscale.graph.overlay import Graph
from blockscale.graph.quant import quant_of
from blockscale.graph.quantizers import ours
from blockscale.graph.view import Meta, Node
from blockscale.numerics.moves import Permute
from blockscale.passes.log import Log

STAGE = "dense"
_WASTE = 1.05  # bytes of padded rows over those of whole ones


def run(graph: Graph, log: Log) -> None:
    for node in graph.nodes:
        x = node.operand(0) if node.kind == "fake_quantize" else None
        if x is None or quant_of(node).foreign is not None or placed(graph, x) is None:
            continue
        order = _order(node, x.meta)
        if order is not None:
            _permuted(graph, node, order)
            log.did(
                STAGE, node, f"{x.name} is stored in the order {', '.join(map(str, order))}, without padding"
            )
            graph.discard([node])


def _order(node: Node, meta: Meta | None) -> tuple[int, ...] | None:
    """The blocked dimension last, where that is what packed rows need. Random bits depend on the place."""
    quant = quant_of(node)
    bits, packed = quant.numbers.element_format.bits, quant.numbers.element_format.packed
    if meta is None or not packed or quant.numbers.rounding == "stochastic" or node.operand(1) is not None:
        return None
    blocked = [i for i, size in enumerate(quant.block) if size != 1]
    if len(blocked) != 1 or blocked[0] == len(meta.shape) - 1:
        return None
    old, new = (meta.shape[i] for i in (-1, blocked[0]))
    if not (isinstance(old, int) and isinstance(new, int)) or not old or not new:
        return None
    if _padding(old, bits) <= max(_WASTE, _padding(new, bits)):
        return None
    return (*(i for i in range(len(meta.shape)) if i != blocked[0]), blocked[0])


def _padding(size: int, bits: int) -> float:
    return -(-size * bits // 8) * 8 / (size * bits)


def _permuted(graph: Graph, node: Node, order: tuple[int, ...]) -> None:
    quant, x, y = quant_of(node), node.operand(0), node.outputs[0]
    assert x is not None and x.meta is not None and y.meta is not None
    there, back = Permute(order), Permute(order).inverse()
    moved = Meta(x.meta.dtype, tuple(x.meta.shape[i] for i in order))
    first = graph.make("permute", [x], [moved], {"move": there}, near=node, name=f"{node.name}_last")
    block = tuple(quant.block[i] for i in order)
    operands = [first.outputs[0], *(node.operand(i) for i in range(1, 4))]
    while operands[-1] is None:
        operands.pop()
    params = {**node.params, "quant": ours(quant.numbers, block, node.params.get("seed", 0))}
    fake = graph.make("fake_quantize", operands, [moved], params, near=node, name=node.name)
    last = graph.make(
        "permute", [fake.outputs[0]], [y.meta], {"move": back}, near=node, name=f"{node.name}_back"
    )
    graph.replace(y, last.outputs[0])
