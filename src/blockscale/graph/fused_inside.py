"""Quantizes that an operator may do itself: floats are measured, and nobody else reads the codes.

Motion may have taken such a quantize above reshapes and permutes, where it met no equal. They are then done
on the floats, if codes and scales follow them as a quantize behind them would have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from blockscale.errors import BlockscaleError
from blockscale.graph.fused import RESULTS
from blockscale.graph.overlay import Graph
from blockscale.graph.quant import is_empty, layout_of, lost_in_codes, quant_of
from blockscale.graph.view import Meta, Node, Value
from blockscale.numerics.follow import Moved
from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import Move, Permute, Reshape
from blockscale.numerics.through import lifted, through


@dataclass(frozen=True)
class Inside:
    """What dequantizes to the values of a node: a quantize, moved by `moves`."""

    q: Node
    moves: tuple[Move, ...]
    layout: Layout

    def floats(self, graph: Graph, near: Node) -> Value:
        """The operand of the quantize where its codes are read."""
        x = self.q.operand(0)
        assert x is not None and x.meta is not None
        shape = graph.alphabet.numbers(x.meta.shape)
        for move in self.moves:
            shape = move.shape(shape)
            meta = Meta(x.meta.dtype, graph.alphabet.dims(shape))
            kind = "permute" if isinstance(move, Permute) else "reshape"
            x = graph.make(kind, [x], [meta], {"move": move}, near=near).outputs[0]
            assert x.meta is not None
        return x


def inside(graph: Graph, node: Node) -> Inside | None:
    """Of a dequantize; None where somebody else has a use of the quantize, or bits would change."""
    paths = [None if value is None else _path(value) for value in node.operands]
    codes = paths[0]
    q = codes[0].producer if codes is not None else None
    if codes is None or q is None or q.kind != "quantize" or q.operand(1) is not None or not q.call.pure:
        return None
    quant = quant_of(q)
    if quant.outputs != RESULTS or quant.numbers != quant_of(node).numbers or lost_in_codes(quant.numbers):
        return None
    read, scales = [codes[0]], []
    for i, (value, path) in enumerate(zip(node.operands, paths, strict=True)):
        if value is None or i == 0:
            continue
        if path is None or path[0] is not q.outputs[i]:
            return None
        read.append(path[0])
        if RESULTS[i] != "tensor_scale" and not is_empty(quant, RESULTS[i], path[0].meta):
            scales.append(path[1])
    if any(value.users and value not in read for value in q.outputs):
        return None
    return _followed(graph, q, node, codes[1], scales)


def _path(value: Value) -> tuple[Value, list[Node]] | None:
    """Up over reshapes and permutes of which nobody else uses anything; the first one first."""
    nodes: list[Node] = []
    while _has_one_user(value):
        node = value.producer
        source = node.operand(0) if node is not None and node.call.operands else None
        if node is None or source is None or "move" not in node.params or not node.call.pure:
            return value, nodes[::-1]
        if node.kind in ("reshape", "permute"):
            nodes.append(node)
        elif node.kind not in ("identity", "expand") or source.meta != value.meta:
            return value, nodes[::-1]
        value = source
    return None


def _has_one_user(value: Value) -> bool:
    """Beside checks; of what many use they are not counted."""
    return len(value.uses) <= _FEW and len(value.users) == 1


_FEW = 8


def _followed(
    graph: Graph, q: Node, node: Node, codes: Sequence[Node], scales: Sequence[Sequence[Node]]
) -> Inside | None:
    layouts = [layout_of(one, graph.alphabet) for one in (q, node)]
    layout, last = (None if isinstance(one, str) else _dynamic(one) for one in layouts)
    if layout is None or last is None:
        return None
    moves: list[Move] = []
    at = [0] * len(scales)
    for step in codes:
        move = _on_values(graph, step, layout)
        below = None if move is None else _below(layout, move)
        if move is None or below is None:
            return None
        for i, chain in enumerate(scales):
            taken = _taken(graph, chain[at[i] :], move, layout, below)
            if taken is None:
                return None
            at[i] += taken
        moves.append(move)
        layout = below
    if layout != last or any(n != len(chain) for n, chain in zip(at, scales, strict=True)):
        return None
    return Inside(q, tuple(moves), layout)


def _dynamic(layout: Layout) -> Layout:
    return replace(layout, numbers=replace(layout.numbers, dynamic=True))


def _on_values(graph: Graph, step: Node, layout: Layout) -> Move | None:
    """What moves codes, as it moves values."""
    move = step.params["move"]
    shape = graph.numbers(step.outputs[0])
    if isinstance(move, Permute):
        return move
    if not isinstance(move, Reshape) or shape is None:
        return None
    element = layout.numbers.element_format
    if element.packed and shape:
        shape = (*shape[:-1], shape[-1] * 8 // element.bits)
    return Reshape(shape)


def _below(layout: Layout, move: Move) -> Layout | None:
    """The layout of a quantize behind the move that is the one before it."""
    try:
        down = through(layout, move, codes=True)
        up = lifted(down.layout, move, layout.shape) if isinstance(down, Moved) else down
    except BlockscaleError:
        return None
    same = isinstance(down, Moved) and isinstance(up, Moved) and up.before[0] == layout
    return down.layout if same and isinstance(down, Moved) else None


def _taken(graph: Graph, chain: Sequence[Node], move: Move, above: Layout, below: Layout) -> int | None:
    """How many steps of the scales belong to this one of the codes; None where they do something else."""
    if chain:
        other = chain[0].params["move"]
        alike = other == move if isinstance(move, Permute) else isinstance(other, Reshape)
        if alike and graph.numbers(chain[0].outputs[0]) == below.scale_shape:
            return 1
    return 0 if isinstance(move, Reshape) and above.scale_shape == below.scale_shape else None
