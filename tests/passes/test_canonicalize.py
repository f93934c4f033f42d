"""Foreign quantizers become ours without a changed bit, or stay with a reason."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx

import graph.foreign
from blockscale.passes import canonicalize
from blockscale.passes.log import Log
from passes.fx_graphs import Builder, assert_equal, assert_sound, optimize, run

aten, pt2e = torch.ops.aten, torch.ops.quantized_decomposed
ao, tico, cast = torch.ops.torchao, torch.ops.circle_custom, torch.ops.tensor_cast


def data(*shape: int, seed: int = 0, specials: bool = True) -> Tensor:
    """Many magnitudes, ties for scales that are powers of two, zeros, both infinities."""
    r = np.random.default_rng(seed)
    x = r.standard_normal(shape).astype(np.float32) * 2.0 ** r.integers(-6, 6, shape).astype(np.float32)
    x = np.where(r.random(shape) < 0.3, r.integers(-300, 300, shape) / 16, x).astype(np.float32)
    if specials:
        x[r.random(shape) < 0.02] = 1e30
        x[r.random(shape) < 0.02] = np.inf
        x[r.random(shape) < 0.02] = -np.inf
        x[r.random(shape) < 0.05] = -0.0
    return torch.from_numpy(x)


def targets(module: fx.GraphModule) -> list[str]:
    return [
        str(n.target)
        for n in module.graph.nodes
        if n.op == "call_function" and "getitem" not in str(n.target)
    ]


def canonical(b: Builder, *outputs: Any, split: bool = True) -> tuple[list[str], Log]:
    """Operators after, with the same results as before and the same again when it is done again."""
    module = b.done(*outputs)
    after = copy.deepcopy(module)

    def stage(g: Any, log: Log) -> None:
        canonicalize.run(g, log, split=split)

    log = optimize(after, (stage,))
    assert_sound(after)
    assert_equal(run(module, b.examples), run(after, b.examples))
    return targets(after), log


Q, DQ = "blockscale.quantize.default", "blockscale.dequantize.default"
SCALES = [0.125, 0.1, 1 / 3, 3e-5, 7e4]


# ------------------------------------------------------------------------------------------- aten


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    ("zero", "low", "high"), [(0, -128, 127), (7, 0, 255), (0, -127, 127), (-3, -8, 7), (5, 0, 127)]
)
def test_aten_per_tensor(scale: float, zero: int, low: int, high: int) -> None:
    b = Builder()
    x = b.given(data(40, 33))
    y = b.call(aten.fake_quantize_per_tensor_affine.default, x, scale, zero, low, high)
    assert canonical(b, y)[0] == [Q, DQ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_aten_per_tensor_narrow(dtype: torch.dtype) -> None:
    b = Builder()
    x = b.given(data(40, 33).to(dtype))
    y = b.call(aten.fake_quantize_per_tensor_affine.default, x, 0.1, 3, 0, 255)
    assert canonical(b, y)[0] == [Q, DQ]


@pytest.mark.parametrize("zero", [0, 4])
def test_aten_tensor_qparams(zero: int) -> None:
    b = Builder()
    x = b.given(data(40, 33))
    scale, zeros = b.constant(torch.tensor([0.1])), b.constant(torch.tensor([zero], dtype=torch.int32))
    y = b.call(aten.fake_quantize_per_tensor_affine.tensor_qparams, x, scale, zeros, -128, 127)
    assert canonical(b, y)[0] == [Q, DQ]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_aten_per_channel(axis: int) -> None:
    b = Builder()
    x = b.given(data(6, 6, 6).clamp(-1e9, 1e9))  # beyond 2^63 steps torch's kernel overflows
    scale = b.constant(torch.tensor([0.125, 0.1, 1 / 3, 3e-3, 7e4, 1.0]))
    zero = b.constant(torch.tensor([0, 1, -1, 7, -8, 127], dtype=torch.int32))
    y = b.call(aten.fake_quantize_per_channel_affine.default, x, scale, zero, axis, -128, 127)
    assert canonical(b, y)[0] == [Q, DQ]


def test_aten_float_zero_points_are_added_before_rounding() -> None:
    for zeros, found in ((torch.zeros(6), [Q, DQ]), (torch.full((6,), 0.5), None), (torch.ones(6), None)):
        b = Builder()
        x = b.given(data(6, 6).clamp(-1e9, 1e9))
        scale = b.constant(torch.tensor([0.125, 0.1, 1 / 3, 3e-3, 7e4, 1.0]))
        y = b.call(aten.fake_quantize_per_channel_affine.default, x, scale, b.constant(zeros), 0, -128, 127)
        after, log = canonical(b, y)
        assert after == (found or ["aten.fake_quantize_per_channel_affine.default"])
        if found is None:
            assert "before rounding" in log.reasons("canonicalize")[0].left


def test_the_mask_of_a_cachemask_keeps_it() -> None:
    operator = aten.fake_quantize_per_tensor_affine_cachemask.default
    b = Builder()
    y, _ = b.items(b.call(operator, b.given(data(40, 33)), 0.1, 3, 0, 255))
    assert canonical(b, y)[0] == [Q, DQ]
    b = Builder()
    y, mask = b.items(b.call(operator, b.given(data(40, 33)), 0.1, 3, 0, 255))
    after, log = canonical(b, y, mask)
    assert after == [str(operator)]
    assert log.reasons()[0].left == "its mask is used"


def test_cachemask_with_qparams_and_per_channel() -> None:
    b = Builder()
    x = b.given(data(6, 6).clamp(-1e9, 1e9))
    scale, zero = b.constant(torch.tensor([0.1])), b.constant(torch.tensor([3], dtype=torch.int32))
    on = b.constant(torch.tensor([1]))
    operator = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
    y = b.items(b.call(operator, x, scale, zero, on, 0, 255))[0]
    scales, zeros = b.constant(torch.rand(6) + 0.1), b.constant(torch.arange(6, dtype=torch.int32))
    operator = aten.fake_quantize_per_channel_affine_cachemask.default
    z = b.items(b.call(operator, x, scales, zeros, 1, 0, 255))[0]
    assert canonical(b, y, z)[0] == [Q, DQ, Q, DQ]


def test_a_fake_quantize_that_is_switched_off_stays() -> None:
    b = Builder()
    scale, zero = b.constant(torch.tensor([0.1])), b.constant(torch.tensor([3], dtype=torch.int32))
    operator = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
    off = b.constant(torch.tensor([0]))
    y = b.items(b.call(operator, b.given(data(6, 6)), scale, zero, off, 0, 255))[0]
    assert canonical(b, y)[0] == [str(operator)]


def test_nan_of_a_fake_quantize_becomes_0() -> None:
    """torch gives it the least code; nothing documents that."""
    b = Builder()
    y = b.call(
        aten.fake_quantize_per_tensor_affine.default,
        b.given(torch.tensor([float("nan"), 1.0])),
        0.5,
        3,
        0,
        255,
    )
    module = b.done(y)
    assert module(*b.examples)[0].tolist() == [-1.5, 1.0]
    optimize(module, (canonicalize.run,))
    assert module(*b.examples)[0].tolist() == [0.0, 1.0]


def test_without_split_it_becomes_one_node() -> None:
    b = Builder()
    y = b.call(aten.fake_quantize_per_tensor_affine.default, b.given(data(40, 33)), 0.1, 3, 0, 255)
    assert canonical(b, y, split=False)[0] == ["blockscale.fake_quantize.default"]


def test_one_constant_for_equal_parameters() -> None:
    b = Builder()
    x = b.given(data(40, 33))
    y = x
    for _ in range(3):
        y = b.call(aten.fake_quantize_per_tensor_affine.default, y, 0.1, 3, 0, 255)
    module = b.done(y)
    optimize(module, (canonicalize.run,))
    assert sum(n.op == "get_attr" for n in module.graph.nodes) == 2


# ------------------------------------------------------------------------------------------- PT2E

INTEGERS = [
    (torch.int8, -128, 127),
    (torch.int8, -8, 7),
    (torch.uint8, 0, 255),
    (torch.uint8, 0, 127),
    (torch.int16, -32768, 32767),
]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("dtype", "low", "high"), INTEGERS)
@pytest.mark.parametrize("zero", [0, 3])
def test_pt2e_per_tensor(scale: float, dtype: torch.dtype, low: int, high: int, zero: int) -> None:
    scale = float(np.float32(scale))  # as PT2E's observers give it
    b = Builder()
    q = b.call(pt2e.quantize_per_tensor.default, b.given(data(40, 33)), scale, zero, low, high, dtype)
    y = b.call(pt2e.dequantize_per_tensor.default, q, scale, zero, low, high, dtype)
    assert canonical(b, q, y)[0] == [Q, DQ]


def test_pt2e_scale_of_float64() -> None:
    """1 / scale is rounded once from float64; not every such scale has a float32 with the same reciprocal."""
    kept = 0
    for i, scale in enumerate(np.random.default_rng(0).uniform(0.01, 1, 40)):
        b = Builder()
        q = b.call(
            pt2e.quantize_per_tensor.default,
            b.given(data(40, 33, seed=i)),
            float(scale),
            0,
            -128,
            127,
            torch.int8,
        )
        after, log = canonical(b, q)
        kept += after != [Q]
        assert after == [Q] or "float64" in log.reasons()[0].left
    assert 0 < kept < 40


@pytest.mark.parametrize("overload", ["tensor", "tensor2"])
@pytest.mark.parametrize("zero", [0, 3])
def test_pt2e_per_tensor_tensors(overload: str, zero: int) -> None:
    b = Builder()
    scale, zeros = b.constant(torch.tensor([0.1])), b.constant(torch.tensor([zero]))
    limits: list[Any] = [-128, 127]
    if overload == "tensor2":
        limits = [b.constant(torch.tensor(n)) for n in limits]
    x = b.given(data(40, 33))
    q = b.call(getattr(pt2e.quantize_per_tensor, overload), x, scale, zeros, *limits, torch.int8)
    y = b.call(getattr(pt2e.dequantize_per_tensor, overload), q, scale, zeros, *limits, torch.int8)
    assert canonical(b, q, y)[0] == [Q, DQ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_pt2e_narrow_tensors(dtype: torch.dtype) -> None:
    b = Builder()
    x = b.given(data(40, 33).to(dtype))
    q = b.call(pt2e.quantize_per_tensor.default, x, 0.125, 3, -128, 127, torch.int8)
    y = b.call(pt2e.dequantize_per_tensor.default, q, 0.1, 3, -128, 127, torch.int8, out_dtype=dtype)
    assert canonical(b, q, y)[0] == [Q, DQ]


def test_pt2e_sixteen_bits_do_not_fit_bfloat16() -> None:
    b = Builder()
    q = b.given(torch.arange(-500, 500, dtype=torch.int16))
    y = b.call(
        pt2e.dequantize_per_tensor.default, q, 0.1, 3, -32768, 32767, torch.int16, out_dtype=torch.bfloat16
    )
    after, log = canonical(b, y)
    assert after == ["quantized_decomposed.dequantize_per_tensor.default"]
    assert "bfloat16 does not hold" in log.reasons()[0].left


def channels(n: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).uniform(0.001, 3, n).astype(np.float32))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("zeros", [torch.int64, torch.int32, torch.float32, None])
def test_pt2e_per_channel(axis: int, zeros: torch.dtype | None) -> None:
    b = Builder()
    scale = b.constant(channels(6))
    zero = b.constant(torch.zeros(6, dtype=torch.int64) if zeros is None else torch.arange(-3, 3).to(zeros))
    x, limits = b.given(data(6, 6, 6)), (axis, -128, 127, torch.int8)
    q = b.call(pt2e.quantize_per_channel.default, x, scale, zero, *limits)
    y = b.call(pt2e.dequantize_per_channel.default, q, scale, None if zeros is None else zero, *limits)
    assert canonical(b, q, y)[0] == [Q, DQ]


def test_pt2e_zero_points_that_wrap_around_stay() -> None:
    b = Builder()
    scale, zero = b.constant(channels(6)), b.constant(torch.full((6,), -100, dtype=torch.int8))
    codes = b.given(torch.randint(-128, 128, (6, 6), dtype=torch.int8))
    y = b.call(pt2e.dequantize_per_channel.default, codes, scale, zero, 0, -128, 127, torch.int8)
    after, log = canonical(b, y)
    assert after == ["quantized_decomposed.dequantize_per_channel.default"]
    assert "wrap" in log.reasons()[0].left


@pytest.mark.parametrize("zero", [0, 1])
def test_pt2e_per_token(zero: int) -> None:
    """The zero point is added before rounding: ties go elsewhere where it is odd."""
    b = Builder()
    scale = b.constant(torch.full((4, 5, 1), 0.125))
    zeros = b.constant(torch.full((4, 5, 1), zero))
    limits = (-128, 127, torch.int8)
    q = b.call(pt2e.quantize_per_token.default, b.given(data(4, 5, 32)), scale, zeros, *limits)
    y = b.call(pt2e.dequantize_per_token.default, q, scale, zeros, *limits, torch.float32)
    names = [Q if zero == 0 else "quantized_decomposed.quantize_per_token.default", DQ]
    assert canonical(b, q, y)[0] == names


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("group", [16, 64, 128])
def test_pt2e_per_group(group: int, flat: bool) -> None:
    b = Builder()
    groups = max(64 // group, 1)
    shape = (8 * groups,) if flat and group < 128 else (8, groups)
    scale, zeros = (
        b.constant(channels(8 * groups).reshape(shape)),
        b.constant(torch.zeros(shape, dtype=torch.int32)),
    )
    limits = (-8, 7, torch.int8, group)
    q = b.call(pt2e.quantize_per_channel_group.default, b.given(data(8, 64)), scale, zeros, *limits)
    y = b.call(pt2e.dequantize_per_channel_group.default, q, scale, None, *limits, torch.float32)
    z = b.call(pt2e.dequantize_per_channel_group.default, q, scale, zeros, *limits, torch.float32)
    assert canonical(b, q, y, z)[0] == [Q, DQ, DQ]


@pytest.mark.parametrize("name", ["choose_qparams.tensor", "choose_qparams_symmetric.tensor"])
def test_pt2e_dynamic_stays_and_says_why(name: str) -> None:
    b = Builder()
    x = b.given(data(4, 32, specials=False))
    limits = (-128, 127)
    base, overload = name.split(".")
    scale, zero = b.items(b.call(getattr(getattr(pt2e, base), overload), x, *limits, 1e-7, torch.int8))
    q = b.call(pt2e.quantize_per_tensor.tensor, x, scale, zero, *limits, torch.int8)
    y = b.call(pt2e.dequantize_per_tensor.tensor, q, scale, zero, *limits, torch.int8)
    after, log = canonical(b, q, y)
    assert [t.rpartition("e.")[0] for t in after] != after and all("decomposed" in t for t in after)
    assert len(log.reasons("canonicalize")) == 3


def test_pt2e_integers_of_32_bits_stay() -> None:
    b = Builder()
    q = b.call(
        pt2e.quantize_per_tensor.default,
        b.given(data(4, 4, specials=False)),
        0.5,
        0,
        -(2**31),
        2**31 - 1,
        torch.int32,
    )
    r = b.call(
        pt2e.quantize_per_tensor.default, b.examples and b.given(data(4, 4)), 0.5, 0, -128, 127, torch.int32
    )
    after, log = canonical(b, q, r)
    assert after == ["quantized_decomposed.quantize_per_tensor.default"] * 2
    assert "int32" in log.reasons()[0].left


# ----------------------------------------------------------------------------------------- torchao

BLOCKS = [
    ((6, 32), (1, 8)),
    ((6, 32), (6, 32)),
    ((6, 32), (1, 32)),
    ((6, 32), (2, 16)),
    ((2, 3, 16), (1, 1, 16)),
    ((2, 3, 16), (1, 3, 8)),
    ((6, 32), (6, 1)),
]


@pytest.mark.parametrize(("shape", "block"), BLOCKS)
@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [(torch.int8, None, None), (torch.int8, -8, 7), (torch.uint8, 0, 255), (torch.uint4, None, None)],
)
@pytest.mark.parametrize("full", [True, False])
def test_torchao(shape: Any, block: Any, dtype: torch.dtype, low: Any, high: Any, full: bool) -> None:
    b = Builder()
    scales = [n // m for n, m in zip(shape, block, strict=True)]
    given = scales if full else [n for n, m in zip(scales, block, strict=True) if n != 1]
    count = int(np.prod(scales))
    scale = b.constant(channels(count).reshape(given))
    zero = b.constant((torch.arange(count, dtype=torch.int32) % 8).reshape(given))
    x = b.given(data(*shape))
    q = b.call(ao.quantize_affine.default, x, list(block), scale, zero, dtype, low, high)
    y = b.call(ao.dequantize_affine.default, q, list(block), scale, zero, dtype, low, high)
    assert canonical(b, q, y)[0] == [Q, DQ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scales", [torch.float32, torch.bfloat16])
def test_torchao_narrow(dtype: torch.dtype, scales: torch.dtype) -> None:
    b = Builder()
    scale, zero = (
        b.constant(channels(6).reshape(6, 1).to(scales)),
        b.constant(torch.arange(6, dtype=torch.int32).reshape(6, 1)),
    )
    x = b.given(data(6, 32).to(dtype))
    q = b.call(ao.quantize_affine.default, x, [1, 32], scale, zero, torch.int8)
    y = b.call(ao.dequantize_affine.default, q, [1, 32], scale, zero, torch.int8, output_dtype=dtype)
    z = b.call(ao.dequantize_affine.default, q, [1, 32], scale, None, torch.int8, output_dtype=dtype)
    after, _ = canonical(b, q, y, z)
    exact = scales is torch.float32
    assert (after[0] == Q) == exact
    assert (after[1:] == [DQ, DQ]) == (exact or dtype is scales)


@pytest.mark.parametrize("mapping", ["SYMMETRIC", "SYMMETRIC_NO_CLIPPING_ERR", "ASYMMETRIC"])
@pytest.mark.parametrize("keepdim", [True, False])
def test_torchao_dynamic_stays(mapping: str, keepdim: bool) -> None:
    b = Builder()
    x = b.given(data(2, 3, 32, specials=False))
    block = [1, 1, 8]
    scale, zero = b.items(
        b.call(
            ao.choose_qparams_affine.default,
            x,
            mapping,
            block,
            torch.int8,
            zero_point_dtype=torch.int32,
            keepdim=keepdim,
        )
    )
    q = b.call(ao.quantize_affine.default, x, block, scale, zero, torch.int8)
    y = b.call(ao.dequantize_affine.default, q, block, scale, zero, torch.int8)
    after, log = canonical(b, q, y)
    assert [name.partition(".")[0] for name in after] == ["torchao"] * 3
    assert len(log.reasons("canonicalize")) == 3


# ------------------------------------------------------------------------------------------- TICO

DYNAMIC, FAKE = "blockscale.dynamic_quantize.default", "blockscale.fake_quantize.default"


@pytest.mark.parametrize("element", graph.foreign.ELEMENTS)
@pytest.mark.parametrize("rounding", ["nearest", "even", "floor"])
def test_tico_fake_quantize(element: str, rounding: str) -> None:
    """It keeps the sign of zeros, for which int8 has no code: there one node of ours takes its place."""
    x = data(3, 40, 33)
    x[0, 0, 0] = float("nan")
    for axis in (0, 1, -1):
        b = Builder()
        y = b.call(tico.mx_fake_quantize.default, b.given(x), element, axis, round=rounding)
        after, log = canonical(b, y)
        assert after == ([FAKE] if element == "int8" else [DYNAMIC, DQ])
        assert ("no code for -0" in log.entries[0].did) == (element == "int8")


@pytest.mark.parametrize(("element", "found"), [("int8", [FAKE]), ("fp4", [DYNAMIC, DQ, DQ])])
def test_tico_pair_is_the_fake_quantize(element: str, found: list[str]) -> None:
    """quantize_mx and dequantize_mx cannot run: the pair is compared with what it stands for."""
    b = Builder()
    x = b.given(data(3, 40))
    q = b.call(tico.quantize_mx.default, x, element, -1)
    y = b.call(tico.dequantize_mx.default, q, element, 1)
    z = b.call(tico.dequantize_mx.default, q, element, -1)
    module = b.done(y, z)
    optimize(module, (canonicalize.run,))
    assert_sound(module)
    assert targets(module) == found
    wanted = tico.mx_fake_quantize(b.examples[0], element, -1)
    assert_equal(run(module, b.examples)[:2], [wanted, wanted])


def test_tico_pair_without_split_is_one_node() -> None:
    b = Builder()
    q = b.call(tico.quantize_mx.default, b.given(data(3, 40)), "fp8_e4m3", -1)
    module = b.done(b.call(tico.dequantize_mx.default, q, "fp8_e4m3", -1))
    optimize(module, (lambda g, log: canonicalize.run(g, log, split=False),))
    assert_sound(module)
    assert targets(module) == [FAKE]
    wanted = tico.mx_fake_quantize(b.examples[0], "fp8_e4m3", -1)
    assert_equal(run(module, b.examples)[:1], [wanted])


def test_half_a_tico_pair_stays() -> None:
    b = Builder()
    q = b.call(tico.quantize_mx.default, b.given(data(3, 40)), "int8", -1)
    y = b.call(tico.dequantize_mx.default, b.call(aten.view.default, q, [120]), "int8", -1)
    module = b.done(y)
    log = optimize(module, (canonicalize.run,))
    assert targets(module) == [
        "circle_custom.quantize_mx.default",
        "aten.view.default",
        "circle_custom.dequantize_mx.default",
    ]
    assert "not its dequantize" in log.reasons()[0].left


@pytest.mark.parametrize(
    ("more", "why"), [({"shared_exp_method": "none"}, "shared_exp_method"), ({"round": "dither"}, "round")]
)
def test_tico_what_is_not_known_stays(more: dict[str, str], why: str) -> None:
    b = Builder()
    y = b.call(tico.mx_fake_quantize.default, b.given(data(3, 40)), "int8", -1, **more)
    module = b.done(y)
    optimize(module, (canonicalize.run,))
    assert targets(module) == ["circle_custom.mx_fake_quantize.default"]


# ------------------------------------------------------------------------------------- tensor_cast


@pytest.mark.parametrize(
    ("shape", "offset"), [((), False), ((1,), True), ((33,), True), ((4, 5, 1), False), ((5, 1), True)]
)
def test_tensor_cast_quantize(shape: tuple[int, ...], offset: bool) -> None:
    b = Builder()
    count = int(np.prod(shape))
    scale = b.constant(channels(count).reshape(shape))
    zero = b.constant((torch.arange(count, dtype=torch.int32) % 7).reshape(shape)) if offset else None
    q = b.call(cast.quantize.default, b.given(data(4, 5, 33)), scale, zero)
    after, log = canonical(b, q)
    assert after == [Q], log


def test_tensor_cast_dynamic_stays() -> None:
    b = Builder()
    x = b.given(data(4, 64, specials=False))
    made = [
        *b.items(b.call(cast.dynamic_quantize_symmetric.default, x, [-1])),
        *b.items(b.call(cast.dynamic_quantize_asymmetric.default, x, [])),
        *b.items(b.call(cast.dynamic_quantize_mxfp4.default, x, 32)),
    ]
    after, log = canonical(b, *made)
    assert [name.partition(".")[0] for name in after] == ["tensor_cast"] * 3
    assert {entry.left for entry in log.reasons("canonicalize")} == {
        "tensor_cast does not tell how it chooses scales"
    }


# -------------------------------------------------------------------------------------------- ours


@pytest.mark.parametrize(
    "scheme",
    ["mxfp4", "mxfp6", "mxfp8", "mxint8", "nvfp4", "int8-token", "int4-g32,zero_point=true", "uint8"],
)
def test_our_own_fake_quantize(scheme: str) -> None:
    x = data(3, 5, 64)
    x[0, 0, 0] = float("nan")
    b = Builder()
    assert canonical(b, b.fake(b.given(x), scheme))[0] == [DYNAMIC, DQ]


def test_our_own_static_fake_quantize() -> None:
    b = Builder()
    x, scale = b.given(data(3, 64)), b.constant(channels(3).reshape(3, 1))
    y = b.fake(x, "int8-token,dynamic=false", None, scale)
    assert canonical(b, y)[0] == [Q, DQ]


def test_a_dialect_without_codes_stays() -> None:
    b = Builder()
    y = b.fake(b.given(data(3, 64)), "mxfp4,dialect=quark")
    after, log = canonical(b, y)
    assert after == ["blockscale.fake_quantize.default"]
    assert "no codes" in log.reasons()[0].left


@pytest.mark.parametrize("seed", [0, 5])
def test_stochastic_rounding_keeps_its_seed(seed: int) -> None:
    b = Builder()
    x = b.given(data(3, 64))
    numbers, block = b.place(x, "mxfp4,rounding=stochastic")
    y = b.call(torch.ops.blockscale.fake_quantize.default, x, numbers, block, seed=seed)
    assert canonical(b, y)[0] == [DYNAMIC, DQ]
