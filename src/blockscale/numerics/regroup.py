"""Reshape seen from the blocks: dimension groups, and in each a contiguous run from the right.

Cut both shapes, from the right, into the least groups of consecutive dimensions with equal products:
(6, 4, 5) → (24, 5) is [6, 4] → [24] and [5] → [5]. A dimension that stays keeps its block. In any
other group no inner product of sizes is common to both sides, so a block whose elements are not
consecutive (their stride would be such a product) is no block of the new shape. Hence the blocks must
be runs of L elements in rows of R,

    block (1, …, 1, e, whole, …, whole)    L = e · (sizes after e)    R = (size at e) · (sizes after e)

and the new dimensions must be able to say the same L, and the same R unless L divides it. Elements keep
their order, and so do blocks: scales only take their new shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

Shape = tuple[int, ...]

# Stands for a size of 0, so that only a zero dimension matches a zero dimension: a prime above all sizes.
_ZERO = (1 << 89) - 1


class CannotFollow(Exception):
    """The scales cannot follow; the argument is a sentence that says why."""


def regroup(shape: Shape, block: Shape, target: Shape) -> Shape:
    """The blocks of `target` that hold the same elements as the blocks of `shape`."""
    if block and not any(block):
        return (0,) * len(target)
    old, new = [n or _ZERO for n in shape], [n or _ZERO for n in target]
    result = [1] * len(target)
    for before, after in _groups(old, new):
        blocks = [block[i] for i in before]
        if len(before) > 1 or len(after) > 1:
            length, row = _run([old[i] for i in before], blocks)
            blocks = _said([new[i] for i in after], length, row)
        for i, b in zip(after, blocks, strict=True):
            result[i] = 0 if b == _ZERO else b
    return tuple(result)


def _groups(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[range, range]]:
    """Least groups of dimensions with equal products; a dimension of 1 without partner is left out."""
    i, j = len(old), len(new)
    while i or j:
        if i and j and old[i - 1] == new[j - 1]:
            p, q = i - 1, j - 1
        elif i and old[i - 1] == 1:
            i -= 1
            continue
        elif j and new[j - 1] == 1:
            j -= 1
            continue
        else:
            p, q = _group_start(old, new, i, j)
        yield range(p, i), range(q, j)
        i, j = p, q


def _group_start(old: Sequence[int], new: Sequence[int], i: int, j: int) -> tuple[int, int]:
    p, q = i - 1, j - 1
    while min(p, q) >= 0:
        a, b = math.prod(old[p:i]), math.prod(new[q:j])
        if a == b:
            return p, q
        p, q = (p - 1, q) if a < b else (p, q - 1)
    raise CannotFollow("there is no element to tell which blocks of the new shape are which of the old")


def _run(sizes: Sequence[int], blocks: Sequence[int]) -> tuple[int, int]:
    """L and R of the docstring; both are the size of the group where one block holds all of it."""
    length = 1
    for k in reversed(range(len(sizes))):
        n, b = sizes[k], blocks[k]
        if 0 < b < n:
            if any(m != 1 and c != 1 for m, c in zip(sizes[:k], blocks[:k], strict=True)):
                break
            return length * b, length * n
        length *= n
    else:
        return length, length
    raise CannotFollow(
        f"dimensions of {_shown(sizes)} in blocks of {tuple(blocks)} are not blocked in consecutive elements"
    )


def _said(sizes: Sequence[int], length: int, row: int) -> list[int]:
    """Blocks of dimensions `sizes` that are runs of `length` in rows of `row`."""
    if length == math.prod(sizes):
        return [0] * len(sizes)
    result = [1] * len(sizes)
    inner = 1
    for k in reversed(range(len(sizes))):
        n, extent = sizes[k], length // inner
        if extent <= n:
            new_row = inner * n
            if new_row == row or (row % length == 0 and new_row % length == 0):
                result[k] = 0 if extent == n and inner > 1 else extent
                return result
            break
        inner *= n
        result[k] = 0
        if length % inner:
            break
    raise CannotFollow(
        f"blocks of {length} consecutive elements do not fit into dimensions of {_shown(sizes)}"
    )


def _shown(sizes: Sequence[int]) -> Shape:
    return tuple(0 if n == _ZERO else n for n in sizes)
