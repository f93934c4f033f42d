"""Contents of values that are known before the run, as far as readers of arguments need them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from blockscale.graph.view import Value
from blockscale.numerics.moves import Cat, Split

_LARGEST = 1 << 16  # elements of what is computed here
_WIDER = frozenset((
    ("float16", "float32"), ("bfloat16", "float32"), ("float32", "float64"), ("int32", "int64"),
))  # fmt: skip


def known(value: Value | None) -> Any:
    """The contents of a small constant, or of what only moves or widens one; None if it is neither."""
    if value is None or value.meta is None or any(not isinstance(n, int) for n in value.meta.shape):
        return None
    if math.prod(value.meta.shape) > _LARGEST:  # type: ignore[arg-type]
        return None
    if value.const is not None:
        return np.asarray(value.const.fetch())
    node = value.producer
    if node is None or not node.slots:
        return None
    move = node.params.get("move")
    if move is None:
        source = node.operand(0)
        wider = (
            source is not None and source.meta is not None and (source.meta.dtype, value.meta.dtype) in _WIDER
        )
        array = known(source) if node.kind == "cast" and wider else None
        return None if array is None else array.astype(value.meta.dtype)
    arrays = [known(v) for v in (node.operands if isinstance(move, Cat) else node.operands[:1])]
    if any(array is None for array in arrays):
        return None
    made = move.apply(arrays if isinstance(move, Cat) else arrays[0])
    return made[value.index] if isinstance(move, Split) else made


def is_constant(value: Value | None) -> bool:
    """Whether it is a constant, or computed from constants alone."""
    if value is None or value.const is not None:
        return value is not None
    node = value.producer
    return node is not None and node.call.pure and bool(node.slots) and all(map(is_constant, node.slots))
