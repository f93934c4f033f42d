"""Layouts: blocks, scale shapes, predicates; and the known wrong moves that concern layouts alone.

Numbers of the traps are those of the list in the motion contract.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockscale.errors import AxisError, BlockError, ScaleError, ShapeError, SizeError
from blockscale.numerics import native
from blockscale.numerics.arrays import NUMPY
from blockscale.numerics.blocking import blocks_of, per_element
from blockscale.numerics.follow import Moved
from blockscale.numerics.layout import Layout, bind, block_of_scale, layout_named
from blockscale.numerics.moves import Cat, Permute, Reshape, Slice, Split
from blockscale.numerics.scheme import numbers_named, scheme_named
from blockscale.numerics.through import Refused, lifted

DYNAMIC = numbers_named("int8")
STATIC = numbers_named("int8,dynamic=false")
MX = numbers_named("mxfp4")

SHAPES = st.lists(st.integers(0, 9), max_size=3).map(tuple)


@given(st.data(), SHAPES)
def test_scale_shape_is_the_number_of_blocks(data: st.DataObject, shape: tuple[int, ...]) -> None:
    block = tuple(data.draw(st.integers(0, 11)) for _ in shape)
    layout = Layout(DYNAMIC, shape, block)
    for n, b, groups in zip(shape, block, layout.scale_shape, strict=True):
        extent = b or n
        assert groups == (1 if b == 0 else len(range(0, n, extent)))
    x = np.arange(layout.size, dtype=np.float64).reshape(shape)
    found = blocks_of(NUMPY, x, layout)
    assert found.shape[:-1] == layout.scale_shape
    if layout.size:
        spread = per_element(NUMPY, found.max(-1), layout)
        assert spread.shape == shape and (spread >= x).all()


@given(st.data(), st.lists(st.integers(0, 40), max_size=3).map(tuple))
def test_block_of_scale_is_the_inverse_of_scale_shape(data: st.DataObject, shape: tuple[int, ...]) -> None:
    """Of every block if it is given; without, of 1, the whole and powers of two that divide."""
    block = tuple(data.draw(st.integers(0, n + 1)) for n in shape)
    scale_shape = Layout(DYNAMIC, shape, block).scale_shape
    assert block_of_scale(shape, scale_shape, block) == block
    plain = tuple(
        data.draw(st.sampled_from([0, *(b for b in (1, 2, 4, 8, 16) if n % b == 0)])) for n in shape
    )
    scale_shape = Layout(DYNAMIC, shape, plain).scale_shape
    inferred = Layout(DYNAMIC, shape, block_of_scale(shape, scale_shape))
    assert inferred.scale_shape == scale_shape
    for n, b, found in zip(shape, plain, inferred.block, strict=True):
        assert (found or n) == (b or n) or n == 0


@given(st.integers(1, 200), st.integers(0, 220))
def test_block_of_scale_guesses_nothing(n: int, groups: int) -> None:
    """What is inferred is the only block that fits, or an exact power of two."""
    fits = [b for b in range(1, n + 1) if -(-n // b) == groups]
    try:
        (found,) = block_of_scale((n,), (groups,))
    except ScaleError as error:
        if fits:
            assert f"{fits[0]} to {fits[-1]}; give the block" in str(error)
        else:
            assert f"no block makes {groups}" in str(error)
    else:
        found = found or n
        assert found in fits
        assert found in (1, n) or (n % found == 0 and found & (found - 1) == 0)


def test_block_of_scale_asks_where_several_fit() -> None:
    with pytest.raises(ScaleError, match=r"2 scales for 40 elements .* blocks of 20 to 39; give the block"):
        block_of_scale((40,), (2,))
    assert block_of_scale((40,), (2,), (32,)) == (32,)
    with pytest.raises(ScaleError, match="no block makes 64 scales of the 4 elements in dimension 0"):
        block_of_scale((4, 64), (64, 4))  # transposed
    with pytest.raises(ScaleError, match="full rank"):
        block_of_scale((4, 64), (4,))


@given(st.data(), st.lists(st.integers(0, 5), max_size=4).map(tuple))
def test_kinds_of_blocks_are_a_partition(data: st.DataObject, shape: tuple[int, ...]) -> None:
    layout = Layout(STATIC, shape, tuple(data.draw(st.integers(0, 3)) for _ in shape))
    kinds = [layout.per_tensor, layout.per_channel, layout.per_group, layout.blockwise]
    assert kinds.count(True) == 1
    several = [n for n in layout.scale_shape if n != 1]
    cut = [n for n, size in zip(layout.scale_shape, shape, strict=True) if 1 < n < size]
    assert layout.per_tensor == (not several)
    assert layout.per_channel == (len(several) == 1 and not cut)
    assert layout.per_group == (len(cut) == 1)
    if layout.has_compact_form:
        assert layout.compact_scale_shape == tuple(several)


@pytest.mark.parametrize(
    ("block", "kind", "compact"),
    [((0, 0), "per_tensor", ()), ((8, 64), "per_tensor", ()), ((1, 0), "per_channel", (4,)),
     ((0, 1), "per_channel", (64,)), ((1, 32), "per_group", (4, 2)), ((2, 1), "per_group", (2, 64)),
     ((0, 32), "per_group", None), ((2, 0), "per_group", None), ((2, 32), "blockwise", None),
     ((1, 1), "blockwise", None)],
)  # fmt: skip
def test_kinds_of_blocks(block: tuple[int, int], kind: str, compact: tuple[int, ...] | None) -> None:
    layout = Layout(STATIC, (4, 64), block)
    assert getattr(layout, kind)
    assert layout.has_compact_form == (compact is not None)
    if compact is not None:
        assert layout.compact_scale_shape == compact
    else:
        with pytest.raises(ScaleError, match="no compact form"):
            _ = layout.compact_scale_shape


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int8", "int8-channel", "int8-token", "int4-g32"])
def test_a_scheme_binds_to_every_rank(name: str) -> None:
    for rank in range(4):
        layout = bind(scheme_named(name), (5,) * rank)
        assert len(layout.scale_shape) == rank


@pytest.mark.parametrize(
    ("axis", "block"), [(-1, (1, 1, 32)), (2, (1, 1, 32)), (0, (32, 1, 1)), (-3, (32, 1, 1))]
)
def test_negative_and_positive_axes_are_one(axis: int, block: tuple[int, ...]) -> None:
    scheme = replace(scheme_named("mxfp4"), axis=axis)
    assert bind(scheme, (64, 64, 64)) == Layout(scheme.numbers, (64, 64, 64), block)
    with pytest.raises(AxisError):
        bind(replace(scheme, axis=3), (64, 64, 64))


def test_wrong_layouts() -> None:
    with pytest.raises(BlockError):
        Layout(DYNAMIC, (4, 4), (1,))
    with pytest.raises(BlockError):
        Layout(DYNAMIC, (4,), (-1,))
    with pytest.raises(ShapeError):
        Layout(DYNAMIC, (-4,), (1,))


def test_sizes_of_no_machine_are_for_graphs_alone() -> None:
    for shape in ((1 << 40, 1 << 40), (1 << 70,), (1 << 70, 0)):
        layout = Layout(DYNAMIC, shape, (1,) * len(shape))
        assert layout.scale_shape == shape
        with pytest.raises(SizeError):
            native.plan_of(layout)
    with pytest.raises(BlockError):
        native.plan_of(Layout(DYNAMIC, (4,), (1 << 63,)))


# ------------------------------------------------------------------------------- known wrong


def test_trap_2_scale_is_reshaped_with_the_tokens() -> None:
    for numbers, block in ((DYNAMIC, 0), (MX, 32)):
        after = Layout(numbers, (6, 64), (1, block))
        moved = lifted(after, Reshape((6, 64)), (2, 3, 64))
        assert isinstance(moved, Moved)
        assert moved.before == (Layout(numbers, (2, 3, 64), (1, 1, block)),)
        groups = after.scale_shape[1]
        assert moved.scale.apply(np.zeros((2, 3, groups))).shape == (6, groups)


def test_trap_3_blocks_do_not_grow_when_the_last_axis_was_longer() -> None:
    view = Reshape((8, 16))
    mx = lifted(Layout(MX, (8, 16), (1, 32)), view, (2, 64))
    assert isinstance(mx, Refused)
    token = lifted(Layout(DYNAMIC, (8, 16), (1, 0)), view, (2, 64))
    assert isinstance(token, Moved)
    assert token.before[0].block == (1, 16)  # groups of 16; never a row of 64


@pytest.mark.parametrize(("block", "expected"), [((1, 0), (1, 1, 0)), ((0, 1), (0, 0, 1))])
def test_trap_4_axes_are_those_of_the_new_rank(block: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """`dims=[1]` after (2, 3, 8) → (6, 8) is dimension 2 before it, and `dims=[0]` is both of the others."""
    moved = lifted(Layout(DYNAMIC, (6, 8), block), Reshape((6, 8)), (2, 3, 8))
    assert isinstance(moved, Moved) and moved.before[0].block == expected


def test_trap_5_channels_of_a_changing_last_dimension() -> None:
    channels = Layout(STATIC, (4, 6), (0, 1))
    for target in ((24,), (8, 3), (4, 2, 3), (2, 12)):
        assert bool(channels.through(Reshape(target))) == (target == (4, 2, 3))
    split = channels.through(Reshape((4, 2, 3)))
    assert isinstance(split, Moved)
    assert split.layout.scale_shape == (1, 2, 3)  # channels become two dimensions, none is lost


def test_trap_11_permute_maps_the_axis() -> None:
    layout = layout_named("mxfp4", (2, 3, 64))
    for dims in itertools.permutations(range(3)):
        moved = layout.through(Permute(dims))
        assert isinstance(moved, Moved)
        assert moved.layout.block[dims.index(2)] == 32
        assert moved.layout.shape[dims.index(2)] == 64
    again = layout.through(Permute((0, -1, -2)))
    assert isinstance(again, Moved) and again.layout.block == (1, 32, 1)


def test_trap_14_a_scale_shape_alone_does_not_make_channels() -> None:
    groups = Layout(STATIC, (4, 64), block_of_scale((4, 64), (1, 8)))
    assert groups.scale_shape == (1, 8) and not groups.per_channel and not groups.per_tensor
    halves = Layout(STATIC, (4, 64), block_of_scale((4, 64), (2, 1)))
    assert not halves.per_channel
    channels = Layout(STATIC, (4, 64), block_of_scale((4, 64), (1, 64)))
    assert channels.per_channel and channels.channel_axis == 1
    assert Layout(STATIC, (4, 64), (1, 16)).channel_axis is None
    assert Layout(STATIC, (4, 64), (0, 0)).channel_axis == 0
    for layout in (groups, halves):
        assert layout.per_group and not layout.has_compact_form


# ------------------------------------------------------------------------------------ lifted


@given(st.data(), SHAPES.filter(lambda s: 0 not in s))
def test_lifted_is_through_read_backwards(data: st.DataObject, shape: tuple[int, ...]) -> None:
    numbers = data.draw(st.sampled_from([DYNAMIC, STATIC, MX]))
    block = tuple(data.draw(st.sampled_from((0, 1, 2, 3))) for _ in shape)
    before = Layout(numbers, shape, block)
    move = data.draw(
        st.sampled_from(
            [Permute(tuple(reversed(range(len(shape))))), Reshape((before.size,)), Reshape((1, *shape)),
             *([Slice(0, 0, 2), Slice(-1, 1)] if shape else [])]
        )
    )  # fmt: skip
    moved = before.through(move)
    if not isinstance(moved, Moved):
        return
    back = lifted(moved.layout, move, shape)
    if isinstance(move, Slice) and numbers is STATIC:
        assert bool(back) == (moved.inverse is not None)
    elif numbers is not MX or isinstance(move, Permute | Slice):
        assert isinstance(back, Moved)
        assert back.before[0].scale_shape == before.scale_shape


def test_lifting_over_cat_and_split() -> None:
    after = Layout(STATIC, (4, 64), (0, 1))
    moved = lifted(after, Cat(0), (1, 64), (3, 64))
    assert isinstance(moved, Moved) and moved.equal == ("scales",)
    assert [one.shape for one in moved.before] == [(1, 64), (3, 64)]
    rows = lifted(Layout(STATIC, (4, 64), (1, 0)), Cat(0), (1, 64), (3, 64))
    assert isinstance(rows, Moved)
    assert rows.inverse == Split(0, (1, 3))
    assert not lifted(Layout(DYNAMIC, (4, 64), (0, 0)), Cat(0), (1, 64), (3, 64))
    parts = lifted(Layout(MX, (4, 32), (1, 32)), Split(1, (32, 32)), (4, 64))
    assert isinstance(parts, Moved)


def test_stochastic_never_moves_but_its_codes_do() -> None:
    layout = Layout(numbers_named("mxfp4,rounding=stochastic"), (4, 64), (1, 32))
    assert not layout.through(Reshape((2, 2, 64)))
    assert layout.through(Reshape((2, 2, 64)), codes=True)
