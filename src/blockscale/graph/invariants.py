"""What is true of every overlay, after every stage: each rule yields what is wrong, in words.

The adapters check the written model besides: `fx_check`, and onnx's own checker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from blockscale.errors import BlockscaleError, GraphError
from blockscale.graph.dims import blocked
from blockscale.graph.fused import OUT
from blockscale.graph.fused_nodes import Edge, is_fused, read
from blockscale.graph.ops import QUANTIZERS
from blockscale.graph.overlay import Graph
from blockscale.graph.quant import codes_dims, layout_of, logical_meta, quant_of
from blockscale.graph.view import Meta, Node, Value
from blockscale.numerics.moves import Cat, Move, Pad, Slice, Split

Rule = Callable[[Graph, Node], Iterator[str]]


def check(graph: Graph, stage: str) -> None:
    """An error that names the stage, the node and the rule, where one does not hold."""
    for one in graph.walk():
        try:
            nodes = one.nodes
        except AssertionError as cycle:
            raise GraphError(f"after {stage}: {cycle}") from None
        for node in nodes:
            for rule in RULES:
                for wrong in rule(one, node):
                    raise GraphError(f"after {stage}: {node.where()}: {wrong}")


def _uses(graph: Graph, node: Node) -> Iterator[str]:
    for slot, value in enumerate(node.slots):
        if value is None:
            continue
        if (node, slot) not in value.uses:
            yield f"{value!r} does not know that slot {slot} uses it"
        if value.producer is not None and value not in value.producer.outputs:
            yield f"{value!r} is no output of {value.producer.name}, which makes it"
        if value.producer is not None and value.producer not in graph:
            yield f"it uses {value!r}, which was removed"


def _moves(graph: Graph, node: Node) -> Iterator[str]:
    """Shapes and dtypes recomputed are those stored."""
    if "move" not in node.params:
        return
    move: Move = node.params["move"]
    operands = node.operands if isinstance(move, Cat) else node.operands[:1]
    shapes = [graph.numbers(v) for v in operands if v is not None]
    if any(shape is None for shape in shapes) or not shapes:
        return
    try:
        made = move.shapes(*(shape for shape in shapes if shape is not None))
    except BlockscaleError as error:
        yield f"{move} does not fit {shapes}: {error}"
        return
    if len(made) != len(node.outputs):
        yield f"{move} gives {len(made)} results, it has {len(node.outputs)}"
    for shape, value in zip(made, node.outputs, strict=False):
        stored = graph.numbers(value)
        if stored is not None and not _agree(graph, move, shapes, shape, stored):
            yield f"{move} gives {shape}, stored is {stored}"
        first = operands[0]
        if value.meta and first is not None and first.meta and value.meta.dtype != first.meta.dtype:
            same = not isinstance(move, Cat)
            if same:
                yield f"{move} of {first.meta.dtype} gives {first.meta.dtype}, stored is {value.meta.dtype}"


def _agree(
    graph: Graph, move: Move, shapes: list[Any], made: tuple[int, ...], stored: tuple[int, ...]
) -> bool:
    """Equal, but for sums of sizes known only at run time: those have no stand-in that could be reckoned."""
    if made == stored or not isinstance(move, Cat | Pad | Slice | Split) or len(made) != len(stored):
        return made == stored
    run_time = [any(graph.alphabet.involves_symbol(s[i]) for s in shapes) for i in range(len(made))]
    return all(a == b or unknown for a, b, unknown in zip(made, stored, run_time, strict=True))


def _quantizers(graph: Graph, node: Node) -> Iterator[str]:
    """No Q, DQ or fake-quantize without a layout, and its operands and results have the shapes of it."""
    if node.kind not in QUANTIZERS:
        return
    if "quant" not in node.params:
        yield "it has no layout"
        return
    quant, meta = quant_of(node), logical_meta(node)
    if meta is None:
        return
    layout = layout_of(node, graph.alphabet)
    if isinstance(layout, str):
        yield f"it has no layout: {layout}"
        return
    scale = node.operand(1)
    codes = node.operand(0) if node.kind == "dequantize" else None
    pairs: list[tuple[str, Value | None]] = [("scale", scale), ("codes", codes)]
    if node.kind == "quantize":
        pairs += zip(quant.outputs, node.outputs, strict=False)
    for name, value in pairs:
        if value is None or value.meta is None or value.meta.shape == (0,):
            continue
        wanted = None
        if name == "codes":
            wanted = codes_dims(meta.shape, quant.numbers) if quant.packed else meta.shape
        elif name in ("scale", "zero_point") and quant.scale == "full":
            wanted = blocked(meta.shape, quant.block)
        if wanted is None or isinstance(wanted, str):
            continue
        if graph.alphabet.numbers(wanted) != graph.alphabet.numbers(value.meta.shape):
            has = f"has shape {_shown(value.meta)}, its layout wants {wanted}"
            yield f"{name} of blocks {quant.block} on {_shown(meta)} {has}"


def _feeds(graph: Graph, node: Node) -> Iterator[str]:
    """Codes reach a dequantize only with the layout that they were made with."""
    if node.kind != "quantize":
        return
    quant = quant_of(node)
    for name, value in zip(quant.outputs, node.outputs, strict=False):
        if name != "codes":
            continue
        for user in value.users:
            if user.kind == "quantize":
                yield f"its codes are quantized again, by {user.name}"
            if user.kind != "dequantize" or user.operand(0) is not value:
                continue
            other = quant_of(user)
            if (other.numbers.element, other.block) != (quant.numbers.element, quant.block):
                read, made = f"{other.numbers} in {other.block}", f"{quant.numbers} in {quant.block}"
                yield f"{user.name} reads its codes as {read}, they were made as {made}"


def _ports(graph: Graph, node: Node) -> Iterator[str]:
    """Operands and results of a fused node have the shapes of their ports."""
    if not is_fused(node):
        return
    parts = read(node)
    out = parts.out
    if out.port is not None:
        measured = node.outputs[1] if out.scale is None else out.scale
        out = Edge(node.outputs[0], out.port, measured)
    for name, edge in zip((*(one.name for one in parts.row.operands), OUT), (*parts.edges, out), strict=True):
        port, value, scale = edge.port, edge.value, edge.scale
        if port is None or value is None or value.meta is None:
            continue
        wanted = port.shape if scale is None else codes_dims(port.shape, port.numbers)
        pairs = [("", value, wanted), (" scale", scale, blocked(port.shape, port.block))]
        for what, one, dims in pairs:
            if one is None or one.meta is None or isinstance(dims, str) or set(one.meta.shape) <= {1}:
                continue
            if graph.alphabet.numbers(dims) != graph.alphabet.numbers(one.meta.shape):
                yield f"{name}{what} has shape {_shown(one.meta)}, its port in {port.block} wants {dims}"


def _shown(meta: Meta) -> str:
    return "×".join(map(str, meta.shape)) or "()"


RULES: tuple[Rule, ...] = (_uses, _moves, _quantizers, _feeds, _ports)
