"""A norm and the quantize of its result are one operator, however the norm is spelled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from passes.fx_graphs import Builder, aten
from passes.norms import EPS, LAYER, RMS, cast, llama, normed, variance
from passes.proof import Proof, proven

STAGES = ("canonicalize", "cse", "fuse_norm", "fuse_operands", "cse")
FAMILIES = ("mxfp8", "nvfp4", "int8-token", "uint8", "int4-g8", "mxfp6")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
H = 64


def start(dtype: torch.dtype = torch.float32, **more: Any) -> tuple[Builder, fx.Node, fx.Node, fx.Node]:
    """A builder, an input, a weight and a bias."""
    torch.manual_seed(0)
    b = Builder()
    return b, b.input(2, 3, H, dtype=dtype, **more), *(b.constant(torch.randn(H).to(dtype)) for _ in range(2))


def only(proof: Proof) -> str:
    """The only kind that is left, beside the dequantize of the result and sizes that it reads."""
    (kind,) = [kind for kind in proof.kinds if kind not in ("dequantize", "aten.sym_size.int")]
    assert proof.kinds[kind] == 1
    return kind


@pytest.mark.parametrize("name", RMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norms(name: str, dtype: torch.dtype) -> None:
    for i, family in enumerate(FAMILIES[:3] if dtype == DTYPES[0] else FAMILIES[:1]):
        b, x, w, _ = start(dtype, dynamic=(1,) if i == 1 else ())
        proof = proven(b.done(b.fake(RMS[name](b, x, w), family)), b.examples, stages=STAGES)
        assert only(proof) == "fused.rms_norm_quantize", f"{proof.log}"


@pytest.mark.parametrize("name", LAYER)
@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norms(name: str, dtype: torch.dtype) -> None:
    for i, family in enumerate(FAMILIES[3:] if dtype == DTYPES[0] else FAMILIES[3:4]):
        b, x, w, bias = start(dtype, dynamic=(0,) if i == 1 else ())
        proof = proven(b.done(b.fake(LAYER[name](b, x, w, bias), family)), b.examples, stages=STAGES)
        assert only(proof) == "fused.layer_norm_quantize", f"{proof.log}"


@pytest.mark.parametrize("name", [*RMS, *LAYER])
def test_with_the_residual_sum(name: str) -> None:
    for dtype in DTYPES[:2]:
        b, x, w, bias = start(dtype)
        total = b.call(aten.add.Tensor, b.input(2, 3, H, dtype=dtype), x)
        y = RMS[name](b, total, w) if name in RMS else LAYER[name](b, total, w, bias)
        stream = b.call(aten.exp.default, total)
        proof = proven(b.done(b.fake(y, "mxfp8"), stream), b.examples, stages=STAGES)
        kind = f"fused.add_{'rms' if name in RMS else 'layer'}_norm_quantize"
        assert proof.kinds[kind] == 1 and proof.kinds["add"] == 0, f"{proof.log}"
        assert proof.the(kind).outputs[4].used


def test_a_sum_that_nobody_else_needs() -> None:
    b, x, w, _ = start()
    total = b.call(aten.add.Tensor, x, b.input(2, 3, H))
    proof = proven(b.done(b.fake(llama(b, total, w), "mxfp8")), b.examples, stages=STAGES)
    assert only(proof) == "fused.add_rms_norm_quantize"


def test_sums_that_stay() -> None:
    """One that broadcasts, one with a factor, one with a number, one whose scale is computed from it."""
    for kind in ("broadcast", "factor", "number", "scale"):
        b, x, w, _ = start()
        other = b.input(H) if kind == "broadcast" else 1.5 if kind == "number" else b.input(2, 3, H)
        total = b.call(aten.add.Tensor, x, other, **({"alpha": 2} if kind == "factor" else {}))
        y = llama(b, total, w)
        if kind == "scale":
            scale = b.call(
                aten.add.Tensor,
                b.call(aten.amax.default, b.call(aten.abs.default, total), [0, 1, 2], True),
                1.0,
            )
            y = b.fake(y, "int8,dynamic=false", None, scale)
        else:
            y = b.fake(y, "mxfp8")
        examples = [torch.nan_to_num(x, 0.5, 1.0, -1.0).clamp(-50, 50) for x in b.examples]
        proof = proven(b.done(y, total), examples, stages=STAGES)
        assert proof.kinds["fused.rms_norm_quantize"] == 1 and proof.kinds["fused.add_rms_norm_quantize"] == 0


def test_static_scales_and_codes_as_operands() -> None:
    b, x, w, _ = start()
    x, r = b.fake(x, "mxint8"), b.fake(b.input(2, 3, H), "int8-token")
    total = b.call(aten.add.Tensor, x, r)
    y = b.fake(llama(b, total, w), "int8,dynamic=false", None, b.constant(torch.full((1, 1, 1), 0.1)))
    proof = proven(b.done(y, total, x), b.examples, stages=STAGES)
    node = proof.the("fused.add_rms_norm_quantize")
    assert len(node.outputs) == 2 and all(port is not None for port in node.params["ports"][:2])
    assert node.operand(3) is not None  # x is used as floats too: its codes are read, with their scale
    assert proof.kinds["quantize"] == 1


def test_all_projections_share_one() -> None:
    b, x, w, _ = start()
    y = llama(b, x, w)
    made = [b.call(aten.linear.default, b.fake(y, "mxfp8"), b.constant(torch.randn(8, H))) for _ in range(3)]
    proof = proven(b.done(*made), b.examples, stages=STAGES)
    assert proof.kinds["fused.rms_norm_quantize"] == 1 and proof.kinds["fused.linear"] == 3
    assert proof.kinds["quantize"] == 0 and proof.kinds["dequantize"] == 0


# ---------------------------------------------------------------------------------------- what stays


def left(b: Builder, *results: fx.Node) -> str:
    proof = proven(b.done(*results), b.examples, stages=STAGES)
    assert proof.kinds["fused.rms_norm_quantize"] == 0 == proof.kinds["fused.add_rms_norm_quantize"]
    return proof.reasons("fuse_norm")


def test_a_result_that_is_used_as_floats_too() -> None:
    b, x, w, _ = start()
    y = llama(b, x, w)
    assert "used as floats too" in left(b, b.fake(y, "mxfp8"), b.call(aten.exp.default, y))


def test_two_different_quantizes() -> None:
    b, x, w, _ = start()
    y = llama(b, x, w)
    assert "2 different quantizes" in left(b, b.fake(y, "mxfp8"), b.fake(y, "int8-token"))


def test_something_inside_that_is_used() -> None:
    b, x, w, _ = start()
    h = normed(b, x)
    y = b.fake(b.call(aten.mul.Tensor, w, h), "mxfp8")
    assert "inside the norm, is used elsewhere" in left(b, y, b.call(aten.exp.default, h))


def test_rstd_that_is_used() -> None:
    b, x, w, bias = start()
    y, _, rstd = b.items(b.call(aten.native_layer_norm.default, x, [H], w, bias, EPS))
    assert "other results" in left(b, b.fake(y, "mxfp8"), rstd)


def test_a_weight_of_another_shape() -> None:
    b, x, _, _ = start()
    assert "weight is not of shape" in left(b, b.fake(llama(b, x, b.input(3, H)), "mxfp8"))


def test_what_is_written_to() -> None:
    b, x, w, _ = start()
    y = b.fake(llama(b, x, w), "mxfp8")
    b.call(aten.add_.Tensor, x, 1.0)
    left(b, y)


def test_a_copy_inside_lies_elsewhere() -> None:
    """The mean of a transposed tensor sums in another order than that of its copy."""
    b = Builder()
    x, w = b.call(aten.transpose.int, b.input(H, 6), 0, 1), b.constant(torch.randn(H))
    copy = b.call(aten.contiguous.default, b.call(aten.pow.Tensor_Scalar, x, 2))
    mean = b.call(aten.add.Tensor, b.call(aten.mean.dim, copy, [-1], True), EPS)
    h = b.call(aten.mul.Tensor, x, b.call(aten.rsqrt.default, mean))
    left(b, b.fake(b.call(aten.mul.Tensor, w, h), "mxfp8"))


def test_the_weight_in_another_dtype() -> None:
    """weight · h rounds to bfloat16 only where both have it: the product of two dtypes is another norm."""
    b, x, _, _ = start(torch.bfloat16)
    y = b.call(aten.mul.Tensor, b.constant(torch.randn(H)), cast(b, normed(b, x), x))
    left(b, b.fake(y, "mxfp8"))


def _wrong(b: Builder, x: fx.Node, w: fx.Node, what: str) -> fx.Node:
    """Almost a norm."""
    dims, keepdim, exponent = ([1] if what == "axis" else [-1]), what != "keepdim", 3 if what == "cube" else 2
    wide = cast(b, x, torch.float32)
    squares = b.call(aten.pow.Tensor_Scalar, b.call(aten.abs.default, x) if what == "abs" else wide, exponent)
    if what == "product":
        squares = b.call(aten.mul.Tensor, wide, b.call(aten.exp.default, wide))
    mean = b.call(aten.mean.dim, squares, dims, keepdim)
    if what == "eps":
        mean = b.call(aten.add.Tensor, mean, b.call(aten.exp.default, mean))
    elif what != "no eps":
        mean = b.call(aten.add.Tensor, mean, EPS)
    root = b.call(aten.sqrt.default if what == "sqrt" else aten.rsqrt.default, mean)
    h = b.call(
        aten.sub.Tensor if what == "sub" else aten.mul.Tensor,
        b.input(2, 3, H) if what == "other" else wide,
        root,
    )
    if what == "rounded":
        h = cast(b, cast(b, h, torch.bfloat16), torch.float32)
    return b.call(aten.mul.Tensor, w, h)


@pytest.mark.parametrize(
    "what",
    ["axis", "keepdim", "cube", "abs", "product", "eps", "no eps", "sqrt", "sub", "other", "rounded"],
)
def test_what_is_almost_a_norm(what: str) -> None:
    b, x, w, _ = start()
    if what == "keepdim":
        x = b.input(1, 1, H)
    left(b, b.fake(_wrong(b, x, w, what), "mxfp8"))


def test_narrow_arithmetic_is_another_norm() -> None:
    """In bfloat16 throughout: the forms take the mean in float32."""
    b, x, w, _ = start(torch.bfloat16)
    mean = b.call(aten.mean.dim, b.call(aten.pow.Tensor_Scalar, x, 2), [-1], True)
    h = b.call(aten.mul.Tensor, x, b.call(aten.rsqrt.default, b.call(aten.add.Tensor, mean, EPS)))
    left(b, b.fake(b.call(aten.mul.Tensor, w, h), "mxfp8"))


def test_squares_are_the_same_bits() -> None:
    """x·x for x²: what matching takes for equal."""
    for dtype in DTYPES:
        x = torch.cat([torch.randn(10_000) * 10.0**k for k in range(-30, 31, 6)]).to(dtype)
        assert torch.equal(x.pow(2), x * x)


def test_one_by_the_root_rounds_elsewhere() -> None:
    b, x, w, _ = start()
    wide = b.call(aten.reciprocal.default, b.call(aten.sqrt.default, variance(b, x)))
    left(b, b.fake(b.call(aten.mul.Tensor, w, b.call(aten.mul.Tensor, x, wide)), "mxfp8"))
