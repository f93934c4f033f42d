"""A quantizing node on the other side of a move: what its layout, arguments, scales and outputs become there.

`lifted` asks for a quantize above the move that makes its input, `sunk` for a dequantize below one of its
users. Both give a Crossing, or the reason for which there is none; nothing is edited here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from blockscale.errors import BlockscaleError
from blockscale.graph.dims import Dims, blocked
from blockscale.graph.moving import Follower, known_integer
from blockscale.graph.overlay import Graph
from blockscale.graph.quant import Quant, codes_dims, is_empty, layout_of, quant_of
from blockscale.graph.view import Meta, Node, Value
from blockscale.numerics import stored_moves, through
from blockscale.numerics.follow import Moved
from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import Cat, Move, Permute, Reshape, Same

lifted_layout = lru_cache(maxsize=1 << 14)(through.lifted)
sunk_layout = lru_cache(maxsize=1 << 14)(through.through)
stored_move = lru_cache(maxsize=1 << 14)(stored_moves.stored_move)


@dataclass(frozen=True)
class Crossing:
    """How a quantizing node crosses the move `over`.

    quants    of the node on the other side, one for each tensor there
    changes   of its arguments, likewise
    codes     the move that codes get
    scales    the move that scales and zero points get as outputs (lift) or operands (sink)
    given     lift: the move from the scales that the node has to those that it needs on the other side
    """

    over: Node
    quants: tuple[Quant, ...]
    changes: tuple[dict[str, Any], ...]
    codes: Move
    scales: Move
    given: Move | None = None


class Crossings:
    """Of one graph."""

    def __init__(self, graph: Graph, follower: Follower) -> None:
        self.graph, self.follower = graph, follower

    def lifted(self, node: Node, over: Node) -> Crossing | str:
        """For a quantize or fake-quantize and the move that makes its input."""
        move: Move = over.params["move"]
        sources = over.operands if isinstance(move, Cat) else over.operands[:1]
        layout = self._layout(node)
        if isinstance(layout, str):
            return layout
        why = self._untold(node, move) or self._written([node, over])
        if why:
            return why
        found = self._shapes(sources)
        if isinstance(found, str):
            return found
        why = self._unknown_sizes(over, found)
        if why:
            return why
        moved = lifted_layout(layout, move, *found)
        if isinstance(moved, Moved) and node.kind == "fake_quantize":
            # Its result is decoded before the move, not after.
            both = sunk_layout(moved.before[0], move, *moved.before[1:], codes=True)
            moved = both if not both else moved
        if not isinstance(moved, Moved):
            return self.graph.alphabet.spelled(moved.reason)
        dims = [v.meta.shape for v in sources if v is not None and v.meta is not None]
        measured = [name for name in moved.equal if not _is_given(node, name)]
        if measured:
            return f"{', '.join(measured)} would have to be equal in all parts"
        return self._crossing(node, over, moved, moved.before, dims, lift=True)

    def sunk(self, node: Node, over: Node, others: Sequence[Node] = ()) -> Crossing | str:
        """For a dequantize and one of its users; for a cat, `others` make its other parts."""
        layouts = []
        for one in (node, *others):
            layout = self._layout(one)
            if isinstance(layout, str):
                return layout
            layouts.append(layout)
        move: Move = over.params["move"]
        why = self._untold(node, move) or self._written([node, over, *others])
        if why:
            return why
        if any(value.meta is None for value in over.outputs):
            return "a shape is not known"
        why = self._unknown_sizes(over, [one.shape for one in layouts])
        if why:
            return why
        try:
            moved = sunk_layout(layouts[0], move, *layouts[1:], codes=True)
        except BlockscaleError as error:
            return str(error)
        if not isinstance(moved, Moved):
            return self.graph.alphabet.spelled(moved.reason)
        for i, name in ((1, "scales"), (2, "zero_points"), (3, "tensor_scale")):
            if name in moved.equal and any(one.operand(i) is not node.operand(i) for one in others):
                return f"its parts have other {name.replace('_', ' ')}"
        dims = [value.meta.shape for value in over.outputs if value.meta is not None]
        return self._crossing(node, over, moved, moved.after, dims, lift=False)

    # ------------------------------------------------------------------------------ parts

    def _layout(self, node: Node) -> Layout | str:
        layout = layout_of(node, self.graph.alphabet)
        if isinstance(layout, str) or node.kind == "dequantize":
            return layout
        if layout.numbers.family == "affine":
            measured = node.operand(1) is None and quant_of(node).scale != "python"
            if layout.numbers.dynamic != measured:
                return replace(layout, numbers=replace(layout.numbers, dynamic=measured))
        return layout

    def _untold(self, node: Node, move: Move) -> str:
        """Why a foreign operator whose arithmetic is not known stays: its code of 0, or of -x, is not known."""
        foreign = quant_of(node).foreign
        if foreign is None or not foreign.why or type(move) not in through.CHANGING:
            return ""
        return f"the codes of {node.call.name} are its own: {foreign.why}"

    def _written(self, nodes: Sequence[Node]) -> str:
        """Why they must stay where they are in the order of things; empty if they need not."""
        mutated = self.graph.mutated
        for node in nodes if mutated else ():
            for value in (*node.slots, *node.outputs):
                if value in mutated:
                    return f"{value.name} shares memory that the graph writes to"
        return ""

    def _shapes(self, values: Sequence[Value | None]) -> list[tuple[int, ...]] | str:
        shapes = []
        for value in values:
            if value is None or value.meta is None:
                return "a shape is not known"
            shapes.append(self.graph.alphabet.numbers(value.meta.shape))
        return shapes

    def _unknown_sizes(self, over: Node, shapes: Sequence[tuple[int, ...]]) -> str:
        """Why the sizes that it makes cannot be reckoned: of b and s all products have stand-ins, no sums."""
        move: Move = over.params["move"]
        try:
            made = move.shapes(*shapes)
        except BlockscaleError as error:
            return str(error)
        for numbers, value in zip(made, over.outputs, strict=True):
            if value.meta is not None and numbers != self.graph.numbers(value):
                shape = "×".join(map(str, value.meta.shape))
                return f"{shape} comes of adding to sizes that are known only at run time"
        return ""

    def _crossing(
        self, node: Node, over: Node, moved: Moved, layouts: Sequence[Layout], dims: list[Dims], lift: bool
    ) -> Crossing | str:
        quant = quant_of(node)
        codes = self._codes(node, moved, over)
        if isinstance(codes, str):
            return codes
        quants, changes = [], []
        for layout, shape in zip(layouts, dims, strict=True):
            why = self._unsayable(layout, shape, quant)
            if why:
                return why
            change = (
                quant.say(layout, shape)
                if quant.say
                else f"{node.call.name} cannot be written with other blocks"
            )
            if isinstance(change, str):
                return change
            quants.append(quant.with_block(layout.block))
            changes.append(change)
        scales = self._compact(moved.scale, quant, moved)
        given = self._compact(moved.inverse, quant, moved) if lift and node.operand(1) is not None else Same()
        for move in (scales, given):
            if isinstance(move, str):
                return move
        assert isinstance(scales, Move) and isinstance(given, Move)
        used_scales = node.kind != "fake_quantize" and (node.kind == "dequantize" or "scale" in quant.outputs)
        of_codes, of_scale, of_given = _dtypes(node, quant)
        checks = [(codes, over, of_codes), (given, None, of_given)]
        if used_scales:
            checks.append((scales, over, of_scale))
        why = next((w for move, like, dtype in checks if (w := self.follower.check(move, like, dtype))), "")
        if why:
            return f"its codes or scales would need a {why}"
        return Crossing(over, tuple(quants), tuple(changes), codes, scales, given)

    def _codes(self, node: Node, moved: Moved, over: Node) -> Move | str:
        if node.kind == "fake_quantize":
            found: Move = over.params["move"]
            return found
        quant = quant_of(node)
        zero = known_integer(node.operand(2)) if node.operand(2) is not None else quant.zero_point
        if quant.packed and quant.numbers.element_format.packed:
            stored = stored_move(moved, over.params["move"], zero)
            return stored if isinstance(stored, Move) else stored.reason
        if moved.at_zero_point and zero is None:
            return "the zero point, which fills the padding, is not known"
        return moved.codes_at(zero or 0)

    def _unsayable(self, layout: Layout, dims: Dims, quant: Quant) -> str:
        if any(self.graph.alphabet.involves_symbol(b) for b in layout.block):
            return "its blocks would have a size known only at run time"
        for made in (blocked(dims, layout.block), codes_dims(dims, quant.numbers) if quant.packed else dims):
            if isinstance(made, str):
                return made
        return ""

    def _compact(self, move: Move | None, quant: Quant, moved: Moved) -> Move | str:
        """`move` is on scales of full rank; a scale with fewer dimensions has a move of its own."""
        if move is None:
            return "the static scales of what the move drops or repeats are not known"
        if quant.scale == "full" or isinstance(move, Same):
            return move
        if isinstance(move, Reshape | Permute):  # a single dimension that is not 1 keeps its order
            return Same()
        if quant.scale in ("scalar", "python"):
            return Same()
        return f"its scale of one dimension cannot follow {move}"


def _dtypes(node: Node, quant: Quant) -> tuple[str, str, str]:
    """Of the codes, of the scales that follow a move, and of those that are given to a quantize."""
    given = _dtype(node.operand(1))
    if node.kind != "quantize":
        return _dtype(node.operand(0)), given, given
    made = dict(zip(quant.outputs, node.outputs, strict=False))
    return _dtype(made.get("codes")), _dtype(made.get("scale")), given


def _dtype(value: Value | None) -> str:
    return "" if value is None or value.meta is None else value.meta.dtype


_GIVEN = {"scales": 1, "zero_points": 2, "tensor_scale": 3}


def _is_given(node: Node, name: str) -> bool:
    """Whether an operand or an argument of a quantize says it, and so says it of every part."""
    return quant_of(node).scale == "python" or node.operand(_GIVEN[name]) is not None


def output_metas(node: Node, quant: Quant, dims: Dims) -> list[Meta | None]:
    """What a quantizing node like `node` gives on a tensor of `dims`, in the order of its outputs."""
    if node.kind != "quantize":
        meta = node.outputs[0].meta
        return [None if meta is None else Meta(meta.dtype, dims)]
    made: list[Meta | None] = []
    for name, value in zip(quant.outputs, node.outputs, strict=False):
        meta = value.meta
        if meta is None or name == "tensor_scale" or is_empty(quant, name, meta):
            made.append(meta)
        elif name == "codes":
            shape = codes_dims(dims, quant.numbers) if quant.packed else dims
            made.append(None if isinstance(shape, str) else Meta(meta.dtype, shape))
        elif quant.scale == "full":
            shape = blocked(dims, quant.block)
            made.append(None if isinstance(shape, str) else Meta(meta.dtype, shape))
        else:
            made.append(meta)
    return made
