"""Block floating point: the codec equals a model of AMD Quark's in exact rationals, and keeps its laws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockscale.errors import BlockError, CombinationError
from blockscale.numerics import codec, native
from blockscale.numerics.arrays import TENSOR_DTYPES
from blockscale.numerics.layout import Layout, bind
from blockscale.numerics.moves import Cat, Flip, Pad, Permute, Reshape, Slice
from blockscale.numerics.scheme import Numbers, numbers_named, refined, scheme_named
from blockscale.numerics.through import through
from conformance.data import F32, adversarial, assert_same
from models import quark_bfp
from models.quark_bfp import MODES

Array = Any
WIDTHS = (10, 11, 12, 13, 16, 17, 20, 24)


def troubles(width: int, seed: int) -> Array:
    """Blocks of random bits, of ties and of their neighbours, next to and below the smallest normal, specials."""
    r = np.random.default_rng([seed, 23])
    n = 120
    bits = r.integers(0, 1 << 32, (n, width), dtype=np.uint64).astype(np.uint32).view(F32)
    steps = np.rint(r.standard_normal((n, width)) * 128) / r.choice([1, 2, 4, 128], (n, width))
    ties = np.ldexp(steps, r.integers(-150, 120, (n, 1)) - r.integers(0, 9, (n, width)))
    tops = r.choice([127, 127.5, 127.75, 128 - 2.0**-17, 126.5, 63.75, 1, 0], (n, width))
    tops = np.ldexp(tops * np.sign(r.standard_normal((n, width))), r.integers(-140, 122, (n, 1)))
    small = np.ldexp(r.standard_normal((n, width)), r.integers(-140, -120, (n, 1)))
    spread = np.ldexp(r.standard_normal((n, width)), r.integers(-149, 127, (n, width)))
    with np.errstate(all="ignore"):
        x = np.concatenate([part.astype(F32) for part in (bits, ties, tops, small, spread)])
    for value in (np.nan, np.inf, -np.inf, -0.0):
        x[r.random(x.shape) < 0.01] = value
    return np.where(np.isnan(x), F32(np.nan), x)  # numpy warns of those that signal


def of_each(f: Callable[[list[float]], list[float]], x: Array) -> Array:
    return np.array([f([float(v) for v in row]) for row in x], F32)


def check(scheme: str, x: Array, wanted: Array) -> None:
    layout = bind(scheme_named(scheme), x.shape)
    with np.errstate(all="ignore"):
        assert_same(codec.fake_quantize(x, layout), wanted, x, scheme)
    assert_same(native.fake_quantize(x, layout), wanted, x, scheme)


@pytest.mark.parametrize("rounding", MODES)
@pytest.mark.parametrize("width", WIDTHS)
def test_to_bfp(width: int, rounding: str) -> None:
    x = troubles(8, width)
    wanted = of_each(lambda row: quark_bfp.to_bfp(row, width, MODES[rounding]), x)
    check(f"bfp{width},dialect=quark,rounding={rounding}", x, wanted)


@pytest.mark.parametrize("rounding", MODES)
def test_to_bfp_of_the_compiler(rounding: str) -> None:
    x = np.concatenate([troubles(8, seed) for seed in range(3)])
    wanted = of_each(lambda row: quark_bfp.to_bfp(row, 16, MODES[rounding], compiler=True), x)
    check(f"bfp16,dialect=quark_compiler,rounding={rounding}", x, wanted)
    other = of_each(lambda row: quark_bfp.to_bfp(row, 16, MODES[rounding]), x)
    assert (wanted != other)[np.isfinite(x)].any()


@pytest.mark.parametrize("rounding", MODES)
@pytest.mark.parametrize(
    ("width", "block", "size", "shift"),
    [*((width, 16, 2, 1) for width in WIDTHS), (15, 24, 4, 2), (16, 8, 8, 1), (13, 6, 3, 0), (16, 4, 1, 3)],
)
def test_to_bfp_prime(width: int, block: int, size: int, shift: int, rounding: str) -> None:
    x = troubles(block, width)
    wanted = of_each(lambda row: quark_bfp.to_bfp_prime(row, width, MODES[rounding], size, shift), x)
    name = f"bfp{width}-g{block},dialect=quark,rounding={rounding},sub_block={size},sub_shift={shift}"
    check(name, x, wanted)


@pytest.mark.parametrize("name", ["mx9", "mx6", "mx4"])
def test_ocp_differs_from_quark_in_special_values_alone(name: str) -> None:
    """Normal values, of which the least is far above the clamp: both are one, but for the sign of 0."""
    r = np.random.default_rng(3)
    x = np.ldexp(r.standard_normal((200, 32)), r.integers(-60, 60, (200, 1))).astype(F32)
    ours = native.fake_quantize(x, bind(scheme_named(name), x.shape))
    quark = native.fake_quantize(x, bind(scheme_named(f"{name},dialect=quark"), x.shape))
    assert np.array_equal(ours, quark)


def test_bfp16_is_mxint8_where_its_scale_is_not_clamped() -> None:
    """The same values by another count: steps instead of 64 steps."""
    r = np.random.default_rng(3)
    x = np.ldexp(r.standard_normal((200, 32)), r.integers(-100, 120, (200, 1))).astype(F32)
    for rule in ("floor", "ceil", "even", "rceil", "mse"):
        mx, bfp = (
            bind(refined(scheme_named(name), block=8, rule=rule), x.shape) for name in ("mxint8", "bfp16")
        )
        assert_same(native.fake_quantize(x, bfp), native.fake_quantize(x, mx), x, rule)
        codes, params = native.quantize(x, bfp)
        others, more = native.quantize(x, mx)
        assert np.array_equal(codes, others)
        assert np.array_equal(params.scales.astype(int) + 6, more.scales)


@pytest.mark.parametrize("tensor_format", ["bf16", "f16"])
@pytest.mark.parametrize("name", ["bfp16,dialect=quark", "mx9,dialect=quark", "bfp16,dialect=quark_compiler"])
def test_half_tensors_are_widened(name: str, tensor_format: str) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(TENSOR_DTYPES[tensor_format])
    x = np.random.default_rng(2).permutation(every).reshape(-1, 16)
    layout = bind(scheme_named(name), x.shape)
    with np.errstate(all="ignore"):
        wide = native.fake_quantize(x.astype(F32), layout).astype(x.dtype)
    assert_same(native.fake_quantize(x, layout), wide, x)


# ------------------------------------------------------------------------------------------ laws

NAMES = ("bfp10", "bfp16", "bfp24", "mx9", "mx6", "mx4", "bfp16,dialect=quark", "mx6,dialect=quark")
ODD = (*NAMES[:6], "mx6,dialect=quark,rounding=half_away")


@st.composite
def tensors(draw: st.DrawFn) -> Array:
    shape = draw(st.tuples(st.integers(0, 3), st.integers(0, 40)))
    exponents = draw(st.tuples(st.integers(-40, 40), st.integers(0, 30)))
    r = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    x = np.ldexp(r.standard_normal(shape), exponents[0] - r.integers(0, exponents[1] + 1, shape))
    return np.where(r.random(shape) < 0.1, 0, x).astype(F32)


def faked(x: Array, name: str, axis: int = -1) -> Array:
    return native.fake_quantize(x, bind(refined(scheme_named(name), axis=axis), x.shape))


@given(tensors(), st.sampled_from(NAMES))
def test_a_second_time_changes_nothing(x: Array, name: str) -> None:
    """The maximum of a block, and so of a sub-block, keeps its exponent: it is cut off, never rounded past it."""
    once = faked(x, name)
    assert np.array_equal(faked(once, name), once)


@given(tensors(), st.sampled_from(NAMES), st.integers(-20, 20))
def test_powers_of_two_go_through(x: Array, name: str, k: int) -> None:
    assert np.array_equal(faked(np.ldexp(x, k), name), np.ldexp(faked(x, name), k))


@given(tensors(), st.sampled_from(ODD))
def test_signs_go_through(x: Array, name: str) -> None:
    assert np.array_equal(faked(-x, name), -faked(x, name))


@given(tensors(), st.sampled_from(NAMES))
def test_any_axis_and_zeros_behind(x: Array, name: str) -> None:
    y = faked(x, name)
    assert_same(faked(x.T, name, 0).T.copy(), y, x)
    assert_same(faked(np.pad(x, ((0, 0), (0, 32 - x.shape[1] % 32))), name)[:, : x.shape[1]], y, x)


@given(tensors())
def test_errors_of_a_sub_block_are_at_most_half_a_step(x: Array) -> None:
    """|x - y| ≤ 2^(E - shift - 7), or less than a step where the largest code cuts off."""
    x = x[:, : x.shape[1] // 2 * 2]
    y = faked(x, "mx9")
    for start in range(0, x.shape[1], 16):
        block = np.abs(x[:, start : start + 16])
        for i in range(0, block.shape[1], 2):
            own, all_ = (np.frexp(a.max(1, initial=0))[1] for a in (block[:, i : i + 2], block))
            step = np.ldexp(1.0, np.maximum(own, all_ - 1) - 7)
            part = slice(start + i, start + i + 2)
            assert (np.abs(x[:, part].astype(float) - y[:, part]) < step[:, None]).all()


# ------------------------------------------------------------------------------------------ refused, moved


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("mx9,rule=even", "floor"), ("mx9,rounding=stochastic", "stochastic"), ("mx9,dialect=torchao", "sub-blocks"),
        ("mxfp4,sub_block=2", "fp4_e2m1"), ("bfp16,sub_shift=1", "without sub_block"), ("bfp16,scale=f32", "e8m0"),
        ("bfp12,dialect=quark_compiler", "bfp16"), ("bfp16,dialect=quark_compiler,rule=floor", "even"),
        ("int8,scale=e8m0", "BFP"), ("bfp16,quant_min=-3", "quant_min"), ("int8,sub_block=2", "affine"),
    ],
)  # fmt: skip
def test_what_is_no_block_floating_point_is_refused(name: str, match: str) -> None:
    with pytest.raises(CombinationError, match=match):
        scheme_named(name)


def test_blocks_are_whole_sub_blocks_along_one_axis() -> None:
    mx9 = scheme_named("mx9")
    for changes in ({"block": 5}, {"axis": (0, 1), "block": (2, 4)}):
        with pytest.raises(BlockError, match="sub-blocks"):
            bind(refined(mx9, **changes), (8, 8))  # type: ignore[arg-type]
    assert Layout(mx9.numbers, (8, 7), (1, 0)).fine.scale_shape == (8, 4)
    assert bind(mx9, ()).fine.scale_shape == ()
    with pytest.raises(CombinationError, match="stored form"):
        native.quantize(np.zeros((2, 16), F32), bind(mx9, (2, 16)))


def test_spelled_and_read() -> None:
    for name in ("mx9", "mx4,dialect=quark", "bfp12", "bfp12,sub_block=4,sub_shift=2", "bfp16,rule=even"):
        assert str(numbers_named(name)) == name
    assert numbers_named("mx9") == Numbers(element="bfp16", sub_block=2, sub_shift=1)
    assert [scheme_named(name).blocks for name in ("bfp16", "mx9", "mx6-g32")] == [(8,), (16,), (32,)]


@pytest.mark.parametrize(
    ("move", "goes"),
    [
        (Permute((1, 0)), True), (Reshape((2, 2, 64)), True), (Slice(1, 16, 48, 1), True), (Reshape((32, 2, 4)), False),
        (Slice(1, 2, 18, 1), False), (Flip((1,)), False), (Flip((0,)), True), (Pad(((0, 0), (0, 5)), 0.0), True),
        (Pad(((0, 0), (2, 0)), 0.0), False), (Cat(1), True),
    ],
)  # fmt: skip
def test_moves_keep_sub_blocks(move: Any, goes: bool) -> None:
    x = adversarial("bfp16", 64, specials=False)[:4]
    layout = Layout(numbers_named("mx9"), x.shape, (1, 16))
    others = (layout,) if isinstance(move, Cat) else ()
    moved = through(layout, move, *others)
    assert bool(moved) == goes, moved
    if not moved:
        return
    before = native.fake_quantize(x, layout)
    if isinstance(move, Cat):
        together = np.concatenate([x, x], 1)
        assert_same(native.fake_quantize(together, moved.layout), np.concatenate([before, before], 1))
        return
    after, expected = (by_numpy(move, a) for a in (x, before))
    assert_same(native.fake_quantize(after, moved.layout), expected)


def by_numpy(move: Any, x: Array) -> Array:
    if isinstance(move, Permute):
        return x.transpose(move.dims).copy()
    if isinstance(move, Reshape):
        return x.reshape(move.target)
    if isinstance(move, Slice):
        return x[:, move.start : move.stop].copy()
    return np.flip(x, 0).copy() if isinstance(move, Flip) else np.pad(x, move.widths)
