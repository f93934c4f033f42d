"""Rows of the motion table that join tensors, bring zeros or change values: cat, pad, neg, abs, relu."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from blockscale.numerics import codec
from blockscale.numerics.codec import Params
from blockscale.numerics.follow import Moved, Terms
from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import (
    Abs,
    Cat,
    Move,
    Neg,
    Pad,
    Relu,
    Same,
)
from blockscale.numerics.scheme import Numbers, numbers_named
from numerics.moving import (
    NUMBERS,
    SIZES,
    assert_bits,
    assert_lifts,
    assert_sinks,
    layouts,
    owners,
    quantized,
    stored_codes,
    stored_params,
    tensor,
)


@st.composite
def cats(draw: DrawFn) -> tuple[Cat, list[Layout]]:
    layout = draw(layouts())
    assume(layout.rank)
    axis = draw(st.integers(-layout.rank, layout.rank - 1))
    b = layout.block[axis]
    sizes = draw(st.lists(st.one_of(SIZES, st.integers(0, 2).map(lambda k: k * b)), min_size=1, max_size=3))
    at = axis % layout.rank
    shapes = [tuple(size if i == at else n for i, n in enumerate(layout.shape)) for size in sizes]
    return Cat(axis), [replace(layout, shape=shape) for shape in shapes]


@settings(max_examples=200)
@given(cats(), st.booleans(), st.integers(0, 2**32))
def test_cat(case: tuple[Cat, list[Layout]], codes: bool, seed: int) -> None:
    move, parts = case
    first = parts[0]
    axis = move.axis % first.rank
    numbers, b = first.numbers, first.block[axis]
    terms = Terms.of(numbers, codes)
    moved = first.through(move, *parts[1:], codes=codes)
    sizes = [part.shape[axis] for part in parts]
    whole = b > 0 and all(n % b == 0 for n in sizes[:-1])
    one = not terms.whole and (b == 0 or (sum(sizes) <= b and sizes[0] > 0))
    assert bool(moved) == (len(parts) == 1 or (not terms.all and (whole or one)))
    if not isinstance(moved, Moved):
        return
    assert ("scales" in moved.equal) == (len(parts) > 1 and not whole)
    params = [
        stored_params(part, seed if "scales" in moved.equal else seed + i) for i, part in enumerate(parts)
    ]
    follow = (lambda ps: moved.scale.apply(ps)) if isinstance(moved.scale, Cat) else (lambda ps: ps[0])
    if codes:
        stored = [stored_codes(part, seed + i) for i, part in enumerate(parts)]
    else:
        xs = [tensor(seed + i, part.shape) for i, part in enumerate(parts)]
        static = numbers.family == "affine" and not numbers.dynamic
        both = [
            quantized(x, part, p if static else None) for x, part, p in zip(xs, parts, params, strict=True)
        ]
        stored, params = [q for q, _ in both], [p for _, p in both]
    zeros = [p.zero_points for p in params]
    followed = Params(
        follow([p.scales for p in params]),
        None if zeros[0] is None else follow(zeros),
        params[0].tensor_scale,
    )
    result = move.apply(stored)
    values = [codec.dequantize(q, part, p) for q, part, p in zip(stored, parts, params, strict=True)]
    assert_bits(codec.dequantize(result, moved.layout, followed), move.apply(values))
    if not codes:
        q, p = quantized(move.apply(xs), moved.layout, followed if static else None)
        assert_bits(q, result)
        assert_bits(p.scales, followed.scales)


def test_cat_of_different_numbers_or_blocks_is_refused() -> None:
    a = Layout(numbers_named("mxfp4"), (2, 64), (1, 32))
    assert not a.through(Cat(0), replace(a, block=(1, 16)))
    assert not a.through(Cat(0), replace(a, numbers=numbers_named("mxfp6")))


PAD_WIDTHS = st.tuples(*[st.sampled_from((0, 0, 1, 2, 4, 8))] * 2)


@settings(max_examples=250)
@given(st.data(), layouts(), st.booleans(), st.integers(0, 2**32))
def test_pad(data: st.DataObject, layout: Layout, codes: bool, seed: int) -> None:
    move = Pad(tuple(data.draw(PAD_WIDTHS) for _ in layout.shape))
    moved = layout.through(move, codes=codes)
    if isinstance(moved, Moved):
        (assert_sinks if codes else assert_lifts)(layout, move, moved, seed)
        if moved.inverse is not None:
            scales = stored_params(layout, seed).scales
            assert_bits(moved.inverse.apply(moved.scale.apply(scales)), scales)
    if layout.size:
        assert bool(moved) == pad_by_force(layout, move, codes), moved


def pad_by_force(layout: Layout, move: Pad, codes: bool) -> bool:
    """Each block after is a block before, and zeros if that cannot be NaN; or zeros alone."""
    may_be_nan = codes and layout.numbers.family != "affine"
    after = Layout(layout.numbers, move.shape(layout.shape), layout.block)
    indices = replace(move, value=-1).apply(np.arange(layout.size).reshape(layout.shape))
    owner, goes = owners(layout).reshape(-1), owners(after)
    new = False
    for k in range(int(np.prod(after.scale_shape))):
        held = indices[goes == k]
        kept = held[held >= 0]
        new |= len(kept) == 0
        if len(kept) and kept.tolist() != np.flatnonzero(owner == owner[kept[0]]).tolist():
            return False
        if 0 < len(kept) < len(held) and may_be_nan:
            return False
    return not layout.numbers.zero_point or (layout.per_tensor and not new)


ELEMENTWISE = (*NUMBERS, *map(numbers_named, (
    "int8,quant_min=-127,dynamic=false", "int4,quant_min=-7,rounding=half_up", "mxint8,rounding=half_up",
    "mxint8,rounding=half_away", "mxfp4,rounding=toward_zero", "int8,quant_min=-127",
)))  # fmt: skip


@settings(max_examples=250)
@given(
    st.sampled_from(ELEMENTWISE), layouts(), st.sampled_from((Neg(), Abs(), Relu())), st.booleans(),
    st.integers(0, 2**32),
)  # fmt: skip
def test_neg_abs_relu(numbers: Numbers, layout: Layout, move: Move, codes: bool, seed: int) -> None:
    layout = replace(layout, numbers=numbers)
    moved = layout.through(move, codes=codes)
    if isinstance(moved, Moved):
        (assert_sinks if codes else assert_lifts)(layout, move, moved, seed)


@pytest.mark.parametrize("numbers", ELEMENTWISE, ids=str)
@pytest.mark.parametrize("codes", [False, True])
@pytest.mark.parametrize("move", [Neg(), Abs(), Relu()], ids=str)
def test_neg_abs_relu_refused_only_where_data_differ(numbers: Numbers, codes: bool, move: Move) -> None:
    layout = Layout(numbers, (4, 64), (0, 0) if numbers.zero_point else (1, 4))
    moved = layout.through(move, codes=codes)
    if isinstance(moved, Moved) or numbers.zero_point:
        return
    if isinstance(move, Relu) and numbers.element_format.is_float:
        return  # refused because frameworks differ in relu(-0)
    element = numbers.element_format
    guess = Moved((layout,), (layout,), move, Same(), Same())
    if element.is_float:
        legal = replace(layout, numbers=numbers_named("mxfp8_e5m2" if element.bits == 8 else "mxfp4"))
        as_codes = legal.through(move, codes=True)
        assert isinstance(as_codes, Moved)
        guess = replace(guess, codes=as_codes.codes)
    with pytest.raises(AssertionError):
        for seed in range(20):
            (assert_sinks if codes else assert_lifts)(layout, move, guess, seed)
