"""How codes and scales follow the moves that bring new values or change them: pad, neg, abs, relu, × 2^k.

Three things decide: what 0 is as a code, whether Q is odd (Q(-x) = -Q(x)) and whether a block can be NaN.
A block with NaN has codes 0 throughout, and they decode to NaN. So a Q moves over zeros that join a short
block, but a DQ does not, if the block may be NaN; and a Q of floats does not move over neg, since -0 is
another code than 0.
"""

from __future__ import annotations

import numpy as np

from blockscale.numerics import codec
from blockscale.numerics.follow import Moved, Terms, moved
from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import (
    Abs,
    Chain,
    ClearBit,
    FlipBit,
    Move,
    MulPow2,
    Neg,
    Pad,
    Relu,
    Same,
    Slice,
)
from blockscale.numerics.regroup import CannotFollow
from blockscale.numerics.scheme import Numbers

SYMMETRIC_ROUNDINGS = ("half_even", "half_away", "toward_zero")


def follow_pad(move: Pad, layout: Layout, terms: Terms) -> Moved:
    """Zeros join short or whole blocks, or become blocks of their own in front or at the end."""
    numbers = layout.numbers
    if move.value != 0:
        raise CannotFollow(f"the code of a padding of {move.value} depends on the scale")
    widths, joins = [], False
    for n, b, (before, after) in zip(layout.shape, layout.block, move.widths, strict=True):
        end = before + n
        if b == 0:
            joins |= before + after > 0
            if numbers.sub_block and n and before:
                raise CannotFollow(f"{before} zeros in front move elements to other sub-blocks")
            widths.append((0, 0))
            continue
        if before % b and n and before // b != (end - 1) // b:
            raise CannotFollow(f"{before} zeros in front are not whole blocks of {b}")
        joins |= n > 0 and (before % b > 0 or (end % b > 0 and after > 0))
        if terms.ordered and numbers.sub_block and n and before % b:
            raise CannotFollow(f"{before} zeros in front move elements to other sub-blocks")
        front = before // b
        widths.append((front, -(-(end + after) // b) - -(-n // b) - front))
    if joins and terms.codes and numbers.family != "affine":
        raise CannotFollow("a short block that holds NaN would make the zeros that join it NaN")
    new = any(pair != (0, 0) for pair in widths)
    if numbers.zero_point and (new or not layout.per_tensor):
        raise CannotFollow("the code of 0 is the zero point, which is not one for the whole tensor")
    if not new:
        return moved(layout, move, layout.block, Same(), None, at_zero_point=numbers.zero_point)
    given = numbers.family == "affine" and not terms.whole
    scale = Pad(tuple(widths), 1.0 if given else zero_block_scale(numbers))
    pairs = zip(widths, layout.scale_shape, strict=True)
    inverse = Chain(tuple(Slice(i, a, a + count) for i, ((a, _), count) in enumerate(pairs)))
    return moved(layout, move, layout.block, scale, inverse)


def zero_block_scale(numbers: Numbers) -> float:
    """The scale (as it is stored) of a block of zeros."""
    layout = Layout(numbers, (1,), (0,))
    found = set()
    for tensor_format in ("f32", "bf16", "f16"):
        params = codec.choose_params(np.zeros(1), layout, tensor_format, np.float32(1))
        found.add(float(params.scales[0]))
    if len(found) > 1:
        raise CannotFollow("the scale of a block of zeros depends on the dtype of the tensor")
    return found.pop()


def follow_neg(move: Neg, layout: Layout, terms: Terms) -> Moved:
    _check_odd(layout.numbers, terms)
    element = layout.numbers.element_format
    if element.is_float and not terms.codes:
        raise CannotFollow("NaN has code 0, and the negative of that is -0, another code")
    if element.is_fixed and terms.codes:
        raise CannotFollow("the negative of a decoded 0 is -0, which integers do not have")
    codes: Move = FlipBit(element.bits - 1) if element.is_float else move
    return moved(layout, move, layout.block, Same(), None, codes=codes)


def follow_abs(move: Abs, layout: Layout, terms: Terms) -> Moved:
    _check_odd(layout.numbers, terms)
    element = layout.numbers.element_format
    if element.is_fixed and terms.codes and layout.numbers.quant_min is None:
        raise CannotFollow(f"a stored code {-element.max_code - 1} has no positive counterpart")
    codes: Move = ClearBit(element.bits - 1) if element.is_float else move
    return moved(layout, move, layout.block, Same(), None, codes=codes)


def _check_odd(numbers: Numbers, terms: Terms) -> None:
    """Refuse where Q(-x) is not -Q(x); sinking, only the range counts."""
    element = numbers.element_format
    if numbers.zero_point:
        raise CannotFollow("a zero point is not symmetric about 0")
    if element.is_fixed:
        low = element.min_code if numbers.quant_min is None else numbers.quant_min
        high = element.max_code if numbers.quant_max is None else numbers.quant_max
        if low != -high:
            raise CannotFollow(f"codes {low}..{high} are not symmetric about 0")
    if terms.codes:
        return
    if numbers.rounding not in SYMMETRIC_ROUNDINGS:
        raise CannotFollow(f"rounding {numbers.rounding!r} is not symmetric about 0")
    if numbers.dialect != "ocp":
        raise CannotFollow(f"dialect {numbers.dialect!r} has its own range and signs of zero")


def follow_relu(move: Relu, layout: Layout, terms: Terms) -> Moved:
    """max(codes, zero point), since Q with a given scale is monotone and Q(0) is the zero point."""
    if move.value != 0:
        raise CannotFollow(f"the code of {move.value} depends on the scale")
    if terms.whole:
        raise CannotFollow("the scale is measured, and without the negative elements it is another")
    if layout.numbers.element_format.is_float:
        raise CannotFollow("whether relu keeps -0 is not defined, and floats have it")
    if layout.numbers.zero_point and not layout.per_tensor:
        raise CannotFollow("the code of 0 is the zero point, which is not one for the whole tensor")
    return moved(layout, move, layout.block, Same(), None, at_zero_point=layout.numbers.zero_point)


def follow_mul_pow2(move: MulPow2, layout: Layout, terms: Terms) -> Moved:
    raise CannotFollow(
        f"2^{move.k} would have to go into the scale, which may over- or underflow; fold it into a constant "
        "where the product is known to be exact"
    )
