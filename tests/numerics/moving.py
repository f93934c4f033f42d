"""What the tests of moves share: layouts and moves at random, the rule by brute force, exactness on data."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from blockscale.numerics import codec
from blockscale.numerics.arrays import NUMPY, Array
from blockscale.numerics.blocking import per_element
from blockscale.numerics.codec import Params
from blockscale.numerics.follow import Moved, Terms
from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import (
    Expand,
    Flip,
    Gather,
    Move,
    Permute,
    Repeat,
    Reshape,
    Roll,
    Slice,
    Split,
)
from blockscale.numerics.scheme import Numbers, numbers_named

NUMBERS = tuple(
    numbers_named(name)
    for name in (
        "int8,dynamic=false", "uint8,dynamic=false", "int4", "uint4", "int8,rule=no_clip,quant_min=-127",
        "uint8,rule=symmetric", "fp8_e4m3", "int4,scale=f16,dynamic=false", "mxfp4", "mxint8",
        "mxfp8_e5m2,rule=ceil", "mxfp4,rule=mse", "nvfp4", "nvfp4,dynamic=false",
    )
)  # fmt: skip
SIZES = st.sampled_from((0, 1, 1, 2, 3, 4, 4, 5, 6, 8, 8, 12))


@st.composite
def layouts(draw: DrawFn, max_rank: int = 3, empty: bool = True, numbers: Numbers | None = None) -> Layout:
    sizes = SIZES if empty else SIZES.filter(bool)
    shape = tuple(draw(st.lists(sizes, max_size=max_rank)))
    blocks = st.one_of(st.sampled_from((0, 1, 2, 4)), st.integers(0, 13))
    style = draw(st.sampled_from(("any", "any", "tensor", "axis", "channel")))
    block = tuple(draw(blocks) for _ in shape)
    if style == "tensor":
        block = (0,) * len(shape)
    elif style != "any" and shape:
        axis, b = draw(st.integers(0, len(shape) - 1)), draw(blocks)
        block = tuple(b if i == axis else 1 for i in range(len(shape)))
        if style == "channel":
            block = tuple(1 if i == axis else 0 for i in range(len(shape)))
    return Layout(numbers or draw(st.sampled_from(NUMBERS)), shape, block)


def _factored(draw: DrawFn, size: int) -> tuple[int, ...]:
    """A shape of `size` elements."""
    shape = []
    while size > 1:
        factor = draw(st.sampled_from([f for f in range(2, size + 1) if size % f == 0]))
        shape.append(factor)
        size //= factor
    for _ in range(draw(st.integers(0, 2))):
        shape.insert(draw(st.integers(0, len(shape))), 1)
    return tuple(shape)


@st.composite
def reshapes(draw: DrawFn, layout: Layout) -> Move:
    if layout.size == 0:
        extra = draw(st.permutations([*layout.shape, 1]))
        return Reshape(draw(st.sampled_from([layout.shape, tuple(extra), (0,), (2, 0)])))
    if draw(st.booleans()):  # factor or merge next to what stays
        dims = list(layout.shape)
        for _ in range(draw(st.integers(1, 2))):
            at = draw(st.integers(0, max(len(dims) - 1, 0)))
            if len(dims) > at + 1 and draw(st.booleans()):
                dims[at : at + 2] = [dims[at] * dims[at + 1]]
            elif dims:
                dims[at : at + 1] = _factored(draw, dims[at])
        return Reshape(tuple(dims))
    return Reshape(_factored(draw, layout.size))


@st.composite
def along_axis(draw: DrawFn, layout: Layout) -> Move:
    """A move that is a map of the indices of single axes."""
    rank = layout.rank
    kind = draw(st.sampled_from(("slice", "split", "gather", "repeat", "flip", "roll")))
    assume(rank > 0)
    axis = draw(st.integers(-rank, rank - 1))
    n, b = layout.shape[axis], max(layout.block[axis], 1)
    near = st.one_of(st.integers(-n - 1, n + 1), st.integers(0, n // b).map(lambda k: k * b))
    if kind == "slice":
        stop = draw(st.one_of(st.none(), near))
        return Slice(axis, draw(near), stop, draw(st.sampled_from((1, 1, 1, 2, b))))
    if kind == "split":
        cuts = sorted(min(max(draw(near), 0), n) for _ in range(draw(st.integers(0, 3))))
        return Split(axis, tuple(e - s for s, e in itertools.pairwise([0, *cuts, n])))
    if kind == "gather":
        if n and draw(st.booleans()):  # blocks moved whole
            order = draw(st.lists(st.integers(0, (n - 1) // b), max_size=4))
            return Gather(axis, tuple(i for k in order for i in range(k * b, min(k * b + b, n))))
        indices = st.lists(st.integers(-n, n - 1), max_size=8) if n else st.just([])
        return Gather(axis, tuple(draw(st.one_of(indices, st.permutations(range(n))))))
    if kind == "repeat":
        times = [1] * rank
        times[axis] = draw(st.integers(0, 3))
        return Repeat(tuple(times))
    axes = tuple(draw(st.permutations(range(rank)))[: draw(st.integers(1, rank))])
    if kind == "flip":
        return Flip(axes)
    shifts = tuple(draw(st.sampled_from((0, 1, -b, b, 2 * b, layout.shape[a]))) for a in axes)
    return Roll(shifts, axes)


@st.composite
def expands(draw: DrawFn, layout: Layout) -> Move:
    target = [draw(st.integers(0, 9)) if n == 1 and draw(st.booleans()) else n for n in layout.shape]
    new = draw(st.lists(st.integers(0, 3), max_size=1))
    return Expand((*new, *target))


@st.composite
def any_move(draw: DrawFn, layout: Layout) -> Move:
    kind = draw(st.sampled_from(("axis", "axis", "reshape", "permute", "expand")))
    if kind == "axis" and layout.rank:
        return draw(along_axis(layout))
    if kind == "reshape":
        return draw(reshapes(layout))
    if kind == "expand":
        return draw(expands(layout))
    return Permute(tuple(draw(st.permutations(range(layout.rank)))))


# ------------------------------------------------------------------ the rule, by brute force


def owners(layout: Layout) -> Array:
    """Flat number of the block of each element."""
    blocks = np.arange(int(np.prod(layout.scale_shape))).reshape(layout.scale_shape)
    return per_element(NUMPY, blocks, layout)


def sources(before: Layout, after: Layout, indices: Array, terms: Terms) -> list[int | None] | None:
    """For each block after the move the block before it that it has its scale from; None: none has."""
    owner, goes = owners(before).reshape(-1), owners(after)
    result: list[int | None] = []
    for k in range(int(np.prod(after.scale_shape))):
        held = indices[goes == k]
        found = set(owner[held].tolist())
        if len(found) > 1:
            return None
        if not found:
            if terms.whole and before.size:
                return None
            result.append(None)
            continue
        members = np.flatnonzero(owner == min(found))
        if terms.whole and set(held.tolist()) != set(members.tolist()):
            return None
        if terms.ordered and held.tolist() != members.tolist():
            return None
        result.append(min(found))
    if terms.all and len(np.unique(indices)) != before.size:
        return None
    return result


def candidates(layout: Layout, move: Move) -> list[Layout]:
    """Layouts that the contract allows after a move: the block stays, but under reshape."""
    numbers, shape, block = layout.numbers, layout.shape, layout.block
    if isinstance(move, Permute):
        return [Layout(numbers, move.shape(shape), tuple(block[d] for d in move.dims))]
    if isinstance(move, Expand):
        target = move.shape(shape)
        new = len(target) - len(shape)
        return [Layout(numbers, target, (fresh,) * new + block) for fresh in (0, 1)]
    if not isinstance(move, Reshape):
        return [Layout(numbers, one, block) for one in move.shapes(shape)]
    target = move.shape(shape)
    every = [range(1, n + 1) for n in target]
    if numbers.family != "affine":
        if not any(block):
            return [Layout(numbers, target, (0,) * len(target))]
        every = [sorted({1, *block}) for _ in target]  # type: ignore[misc]
    named = [b for n, b in zip(shape, block, strict=True) if n != 1 and b != 1]
    found = []
    for blocks in itertools.product(*every):
        kept = [b for n, b in zip(target, blocks, strict=True) if n != 1 and b != 1]
        if numbers.family == "affine" or kept == named:
            found.append(Layout(numbers, target, blocks))
    return found


def by_force(layout: Layout, move: Move, terms: Terms) -> list[list[int | None]] | None:
    """Per output its sources if the move is legal, by trying."""
    indices = move.apply(np.arange(layout.size).reshape(layout.shape))
    if isinstance(move, Reshape):  # the same sets, however the scale came about
        terms = replace(terms, whole=True)
    if isinstance(move, Split):
        after = candidates(layout, move)
        found = [sources(layout, a, i, terms) for a, i in zip(after, indices, strict=True)]
        return None if None in found else found  # type: ignore[return-value]
    for after in candidates(layout, move):
        one = sources(layout, after, indices, terms)
        if one is not None:
            return [one]
    return None


# ------------------------------------------------------------------------------ exactness


def tensor(seed: int, shape: tuple[int, ...], specials: bool = True) -> Array:
    """float32 of many magnitudes, with halves, zeros of both signs, NaN and Inf."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, shape)
    x = np.where(rng.random(shape) < 0.3, np.round(x * 2) / 2, x)
    if specials:
        rare = rng.random(shape) < 0.2 * rng.random()
        x = np.where(rare, rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3e38], shape), x)
        x = np.where(rng.random(shape) < 0.1, 0.0, x)
    return np.asarray(x, dtype=np.float32)


def mixed(seed: int, shape: tuple[int, ...]) -> Array:
    """The same with NaN, Inf and the like in few rows, so that most blocks are not NaN throughout."""
    x = tensor(seed, shape, specials=False)
    if not shape:
        return x
    rare = np.random.default_rng(seed).random((*shape[:-1], 1)) < 0.2
    return np.where(rare, tensor(seed, shape), x)


def params_for(layout: Layout, seed: int) -> Params | None:
    """Static parameters; None: the codec measures them."""
    numbers = layout.numbers
    if numbers.dynamic:
        return None
    rng = np.random.default_rng(seed)
    if numbers.tensor_scale:
        return None  # its tensor scale is given, see `quantized`
    scales = np.exp2(rng.integers(-4, 4, layout.scale_shape)).astype(np.float32) * np.float32(1.5)
    zeros = None
    if numbers.zero_point:
        zeros = rng.integers(int(numbers.quant_min or 0), int(numbers.quant_max or 0) + 1, layout.scale_shape)
    return Params(np.asarray(scales), zeros)


def quantized(x: Array, layout: Layout, params: Params | None) -> tuple[Array, Params]:
    scale = None if layout.numbers.dynamic or params else np.float32(0.01)
    return codec.quantize(x, layout, params, tensor_scale=scale if layout.numbers.tensor_scale else None)


def assert_bits(a: Array, b: Array) -> None:
    """Equal bits; any NaN equals any NaN."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape and a.dtype == b.dtype
    if a.dtype.kind != "f":
        np.testing.assert_array_equal(a, b)
        return
    bits = a.dtype.str.replace("f", "u")
    nan = np.isnan(a) & np.isnan(b)
    np.testing.assert_array_equal(np.where(nan, 0, a.view(bits)), np.where(nan, 0, b.view(bits)))


def params_through(params: Params, moved: Moved, part: int | None = None) -> Params:
    def follow(p: Array | None) -> Array | None:
        if p is None:
            return None
        result = moved.scale.apply(p)
        return result[part] if isinstance(moved.scale, Split) and part is not None else result

    return Params(follow(params.scales), follow(params.zero_points), params.tensor_scale)


def assert_lifts(layout: Layout, move: Move, moved: Moved, seed: int) -> None:
    """Q'(f(x)) = f(Q(x)): codes, scales, zero points and tensor scale."""
    x = tensor(seed, layout.shape)
    given_params = params_for(layout, seed)
    codes, params = quantized(x, layout, given_params)
    several = isinstance(move, Split)
    zero_point = (
        int(params.zero_points.reshape(-1)[0])
        if moved.at_zero_point and params.zero_points is not None
        else 0
    )
    for part, after in enumerate(moved.after):

        def pick(result: Array, part: int = part) -> Array:
            return result[part] if several else result

        followed = params_through(params, moved, part if several else None)
        q, p = quantized(pick(move.apply(x)), after, followed if given_params else None)
        expected = pick(moved.codes_at(zero_point).apply(codes))
        assert_bits(q, expected)
        assert_bits(p.scales, followed.scales)
        if p.zero_points is not None:
            assert_bits(p.zero_points, followed.zero_points)
        if p.tensor_scale is not None:
            assert_bits(p.tensor_scale, followed.tensor_scale)


def stored_codes(layout: Layout, seed: int) -> Array:
    """Any codes that may be stored, not only those that quantizing gives."""
    element = layout.numbers.element_format
    low, high = (0, (1 << element.bits) - 1)
    if element.is_fixed:
        low = -128 if layout.numbers.quant_min is None else layout.numbers.quant_min
        high = 127 if layout.numbers.quant_max is None else layout.numbers.quant_max
    return np.random.default_rng(seed).integers(low, high + 1, layout.shape)


def stored_params(layout: Layout, seed: int) -> Params:
    numbers = layout.numbers
    rng = np.random.default_rng(seed)
    if numbers.family == "affine":
        params = params_for(replace(layout, numbers=replace(numbers, dynamic=False)), seed)
        assert params is not None
        return params
    scales = rng.integers(100, 120, layout.scale_shape)
    nan = 255 if numbers.family == "mx" else 127
    scales = np.asarray(np.where(rng.random(layout.scale_shape) < 0.2, nan, scales))
    return Params(scales, None, np.float32(0.37) if numbers.tensor_scale else None)


def assert_sinks(layout: Layout, move: Move, moved: Moved, seed: int) -> None:
    """f(DQ(codes)) = DQ'(f(codes))."""
    codes, params = stored_codes(layout, seed), stored_params(layout, seed)
    zero_point = (
        int(params.zero_points.reshape(-1)[0])
        if moved.at_zero_point and params.zero_points is not None
        else 0
    )
    values, moved_codes = codec.dequantize(codes, layout, params), moved.codes_at(zero_point).apply(codes)
    expected = move.apply(values)
    several = isinstance(move, Split)
    element = layout.numbers.element_format
    if element.is_fixed and not several and moved_codes.size:
        assert (
            element.min_code - (element.name == "mxint8") <= moved_codes.min()
            and moved_codes.max() <= element.max_code
        )
    for part, after in enumerate(moved.after):
        followed = params_through(params, moved, part if several else None)
        result = codec.dequantize(moved_codes[part] if several else moved_codes, after, followed)
        assert_bits(result, expected[part] if several else expected)
