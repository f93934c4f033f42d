"""Every row and column of the motion table, two ways.

By partition: a move is legal exactly when the elements of each block after it are those of a block before
(what "are" means depends on how the scale came about: `follow.Terms`), found by brute force on indices.
By data: what is called legal gives equal bits of codes, scales and zero points, or of decoded values;
what is refused has data that shows why.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from blockscale.numerics import codec
from blockscale.numerics.follow import Moved, Terms
from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import (
    Cat,
    Move,
    Reshape,
    Split,
)
from blockscale.numerics.scheme import numbers_named
from numerics.moving import (
    along_axis,
    any_move,
    assert_lifts,
    assert_sinks,
    by_force,
    candidates,
    layouts,
    sources,
)


@settings(max_examples=500)
@given(st.data(), layouts(empty=False), st.booleans())
def test_legal_exactly_when_blocks_stay_together(data: st.DataObject, layout: Layout, codes: bool) -> None:
    move = data.draw(any_move(layout))
    terms = Terms.of(layout.numbers, codes)
    moved = layout.through(move, codes=codes)
    expected = by_force(layout, move, terms)
    if isinstance(move, Split) and not moved and expected is not None:
        # A split of the scales is asked for: parts that begin within a block have none.
        axis = move.axis % layout.rank
        assert any(cut % layout.block[axis] for cut in move.cuts() if cut != layout.shape[axis]) or not all(
            move.sizes
        )
        return
    if not moved and any(0 in shape for shape in move.shapes(layout.shape)):
        return  # nothing is lost where nothing is left
    if isinstance(move, Reshape) and layout.per_tensor and not moved and expected is not None:
        # One block over several dimensions, some longer than they are: MX keeps its names or stays.
        assert terms.fixed and len(layout.blocked_axes) > 1
        return
    assert bool(moved) == (expected is not None), moved
    if isinstance(moved, Moved):
        assert_scales_follow(layout, move, moved)


def assert_scales_follow(layout: Layout, move: Move, moved: Moved) -> None:
    indices = move.apply(np.arange(layout.size).reshape(layout.shape))
    numbered = np.arange(int(np.prod(layout.scale_shape))).reshape(layout.scale_shape)
    scale = moved.scale.apply(numbered)
    parts = len(moved.after)
    scales = scale if isinstance(moved.scale, Split) else (scale,) * parts
    terms = Terms(codes=False, whole=False, ordered=False, all=False, fixed=False)
    for after, found, part in zip(
        moved.after, scales, indices if isinstance(move, Split) else (indices,), strict=True
    ):
        assert found.shape == after.scale_shape
        expected = sources(layout, after, part, terms)
        assert expected is not None
        assert all(e in (None, f) for e, f in zip(expected, found.reshape(-1).tolist(), strict=True))
    if moved.inverse is not None:
        back = moved.inverse.apply(scales if isinstance(moved.inverse, Cat) else scales[0])
        np.testing.assert_array_equal(back, numbered)


@settings(max_examples=250)
@given(st.data(), layouts(), st.integers(0, 2**32))
def test_lifting_is_exact(data: st.DataObject, layout: Layout, seed: int) -> None:
    move = data.draw(any_move(layout))
    moved = layout.through(move)
    if isinstance(moved, Moved):
        assert_lifts(layout, move, moved, seed)


@settings(max_examples=200)
@given(st.data(), layouts(), st.integers(0, 2**32))
def test_sinking_is_exact(data: st.DataObject, layout: Layout, seed: int) -> None:
    move = data.draw(any_move(layout))
    moved = layout.through(move, codes=True)
    if isinstance(moved, Moved):
        assert_sinks(layout, move, moved, seed)


@settings(max_examples=120)
@given(st.data(), layouts(empty=False))
def test_what_is_refused_differs_on_data(data: st.DataObject, layout: Layout) -> None:
    """Dynamic numbers: no scale move makes the two orders equal, since codes already differ."""
    numbers = data.draw(st.sampled_from([numbers_named(n) for n in ("int8", "mxint8", "uint8")]))
    layout = replace(layout, numbers=numbers)
    move = data.draw(along_axis(layout))
    if layout.through(move) or isinstance(move, Split):
        return
    assume(0 not in move.shape(layout.shape))
    after = candidates(layout, move)[0]
    for seed in range(200):
        rng = np.random.default_rng(seed)
        x = (rng.standard_normal(layout.shape) * 4.0 ** rng.integers(-3, 4, layout.shape)).astype(np.float32)
        before, _ = codec.quantize(x, layout)
        if not np.array_equal(codec.quantize(move.apply(x), after)[0], move.apply(before)):
            return
    # What is left are maps under which scales are equal by chance of shape: none is known.
    raise AssertionError(f"{layout} {move} is refused but no data tells")
