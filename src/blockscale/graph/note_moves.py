"""What becomes of notes under a move: the layout with its axis, and given scales, by `numerics.through`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from blockscale.errors import BlockscaleError
from blockscale.graph.dims import Alphabet
from blockscale.graph.notes import Note
from blockscale.numerics.follow import Moved
from blockscale.numerics.moves import Cat, Move, Split
from blockscale.numerics.through import through


def carried(move: Move, found: Sequence[Note], alphabet: Alphabet) -> list[Note] | str:
    """Notes of the results of `move` on tensors with notes (several for Cat); or why codes cannot follow."""
    first = found[0]
    if any(replace(one.numbers, dynamic=True) != replace(first.numbers, dynamic=True) for one in found):
        return "its parts have other numbers"
    if len({one.measured for one in found}) > 1:
        return "only some of its parts have given scales"
    layouts = [replace(one.layout_on(alphabet), numbers=first.numbers) for one in found]
    try:
        moved = through(layouts[0], move, *layouts[1:], codes=True)
    except BlockscaleError as error:
        return str(error)
    if not isinstance(moved, Moved):
        return moved.reason
    for name in moved.equal:
        if not all(_equal(getattr(a, name), getattr(b, name)) for a, b in pairwise(found)):
            return f"its parts have other {name.replace('_', ' ')}"
    result = []
    for i, layout in enumerate(moved.after):
        scales, zeros = (
            _moved(moved.scale, [getattr(one, name) for one in found], i)
            for name in ("scales", "zero_points")
        )
        shape = alphabet.dims(layout.shape)
        t = first.tensor_scale
        result.append(Note(first.numbers, layout.block, shape, scales, zeros, t, carried=True))
    return result


def _equal(a: Any, b: Any) -> bool:
    return a is b or (a is not None and b is not None and np.array_equal(a, b))


def _moved(move: Move, arrays: list[Any], index: int) -> Any:
    if arrays[0] is None:
        return None
    made = move.apply(arrays if isinstance(move, Cat) else arrays[0])
    return np.asarray(made[index] if isinstance(move, Split) else made, order="C")
