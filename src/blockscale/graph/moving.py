"""Codes and scales follow a move: nodes for what `numerics.through` says in terms of moves.

The operator that the model has is used again where it does the same to codes (it keeps its sizes, computed
ones too); otherwise the move is written as a node of ours. Nothing is made before all of it is known to be
possible: `Follower.check` first, then `Follower.value`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blockscale.errors import BlockscaleError
from blockscale.graph.overlay import Graph
from blockscale.graph.view import Const, Meta, Node, Value
from blockscale.numerics.moves import (
    Abs,
    Cat,
    Chain,
    ClearBit,
    Expand,
    Flip,
    FlipBit,
    Gather,
    Move,
    Neg,
    Pad,
    Permute,
    Relu,
    Repeat,
    Reshape,
    Roll,
    Same,
    Slice,
    Split,
)

KINDS: dict[type[Move], str] = {
    Reshape: "reshape", Permute: "permute", Expand: "expand", Slice: "slice", Split: "split", Cat: "cat",
    Gather: "gather", Repeat: "repeat", Flip: "flip", Roll: "roll", Pad: "pad", Neg: "neg", Abs: "abs",
    Relu: "relu", FlipBit: "flip_bit", ClearBit: "clear_bit",
}  # fmt: skip


class Follower:
    """Makes each moved value of a graph once."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._made: dict[Any, Node] = {}
        self._folded: dict[Any, Value] = {}
        self._sizes = {n for v in graph.inputs if v.meta is not None for n in v.meta.shape}

    # ------------------------------------------------------------------------------ whether

    def check(self, move: Move, like: Node | None, dtype: str = "") -> str:
        """Why `move` of a `dtype` cannot be written; empty if it can. `like` does it to something else."""
        if isinstance(move, Same):
            return ""
        if isinstance(move, Chain):
            return next((why for part in move.moves if (why := self.check(part, None, dtype))), "")
        if type(move) not in KINDS:
            return f"no operator is known for {move}"
        if self.graph.lacks(KINDS[type(move)], dtype):
            return f"{KINDS[type(move)]} of {dtype}, which the framework has not"
        if _does(like, move):
            return ""
        if isinstance(move, Expand):
            sizes = [self.graph.alphabet.dim(n) for n in move.target if self._run_time(n)]
            return next(
                (f"expand to {n}, which no input has as a size" for n in sizes if n not in self._sizes), ""
            )
        if not isinstance(move, Reshape) and any(map(self._run_time, _numbers(move))):
            return f"{KINDS[type(move)]} by a size known only at run time"
        return ""

    def _run_time(self, number: int) -> bool:
        return self.graph.alphabet.involves_symbol(number)

    # ------------------------------------------------------------------------------ how

    def value(
        self, move: Move, sources: list[Value], index: int, like: Node | None, near: Node, name: str
    ) -> Value:
        """Output `index` of `move` on `sources`, which are what the operands of `like` become."""
        if isinstance(move, Same):
            return sources[0]
        if isinstance(move, Chain):
            for part in move.moves:
                sources = [self.value(part, sources, 0, None, near, name)]
            return sources[0]
        folded = self._fold(move, sources, index, name)
        if folded is not None:
            return folded
        reuse = like if _does(like, move) and self._takes(move, sources[0]) else None
        key = (reuse or move, tuple(sources))
        node = self._made.get(key)
        if node is None:
            metas = self._metas(move, sources)
            if reuse is not None:
                slots = list(reuse.slots)
                for slot, source in zip(reuse.call.operands, sources, strict=False):
                    assert slot is not None
                    slots[slot] = source
                node = self.graph.clone(reuse, slots, metas)
            else:
                node = self._make(move, sources, metas, near, name)
            self._made[key] = node
        return node.outputs[index]

    def _make(self, move: Move, sources: list[Value], metas: list[Meta], near: Node, name: str) -> Node:
        operands: list[Value | None] = list(sources)
        if isinstance(move, Gather):
            indices = np.array(move.indices, dtype=np.int64)
            operands.append(self.graph.constant(indices, f"{name}_indices", Meta("int64", indices.shape)))
        return self.graph.make(KINDS[type(move)], operands, metas, {"move": move}, near=near, name=name)

    def _takes(self, move: Move, source: Value) -> bool:
        """Whether a copy of the operator of values does it to codes; what `_make` makes does, everywhere."""
        return source.meta is None or self.graph.takes(KINDS[type(move)], source.meta.dtype)

    def _metas(self, move: Move, sources: list[Value]) -> list[Meta]:
        alphabet = self.graph.alphabet
        first = sources[0].meta
        shapes = []
        for source in sources:
            assert source.meta is not None
            shapes.append(alphabet.numbers(source.meta.shape))
        assert first is not None
        return [Meta(first.dtype, alphabet.dims(shape)) for shape in move.shapes(*shapes)]

    def _fold(self, move: Move, sources: list[Value], index: int, name: str) -> Value | None:
        """The result as a constant, where all of it is known now and not larger than it was."""
        if any(source.const is None or source.meta is None for source in sources):
            return None
        if isinstance(move, Expand | Repeat | Neg | Abs | Relu):
            return None
        metas = self._metas(move, sources)
        if any(not isinstance(n, int) for meta in metas for n in meta.shape):
            return None
        key = (move, tuple(sources), index)
        if key not in self._folded:
            constants = [source.const for source in sources]

            def fetch() -> Any:
                arrays = [const.fetch() for const in constants if isinstance(const, Const)]
                result = move.apply(arrays if isinstance(move, Cat) else arrays[0])
                return np.asarray(result[index] if isinstance(move, Split) else result, order="C")

            self._folded[key] = self.graph.constant(fetch, name, metas[index])
        return self._folded[key]


def _does(like: Node | None, move: Move) -> bool:
    """Whether a copy of `like` does `move` to codes and scales; a fill that is an operand has the dtype of values."""
    if like is None or like.params.get("move") != move:
        return False
    floats = [v for v in like.slots if v is not None and v.meta is not None and "float" in v.meta.dtype]
    return not isinstance(move, Pad) or len(floats) < 2


def _numbers(move: Move) -> list[int]:
    found: list[int] = []
    pending: list[Any] = list(vars(move).values())
    while pending:
        item = pending.pop()
        if isinstance(item, tuple):
            pending += item
        elif isinstance(item, int):
            found.append(item)
    return found


def known_integer(value: Value | None) -> int | None:
    """The one number that a constant holds."""
    if value is None or value.const is None:
        return None
    try:
        array = np.asarray(value.const.fetch())
    except BlockscaleError:
        return None
    return int(array.reshape(-1)[0]) if array.size == 1 else None
