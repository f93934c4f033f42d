"""Requantize: a dequantize with a quantize behind it is one operator, and both of its roundings stay."""

from __future__ import annotations

import pytest
import torch

from passes.fx_graphs import Builder, aten, example
from passes.proof import proven
from runtime.torch_cases import equal

STAGES = ("canonicalize", "cse", "requantize", "cse")
# MX → affine, affine → MX, MX → MX, two levels, asymmetric, packed to packed: error 10 of the contract of motion.
PAIRS = [
    ("mxfp4", "int8-token"), ("int8-token", "mxfp4"), ("mxfp8", "mxfp4"), ("nvfp4", "mxint8"),
    ("uint8-token", "int4-g32"), ("mxfp6", "nvfp4"), ("mxint8", "uint8"), ("int8", "int8-channel"),
    ("mxfp4", "mxfp4-g16"), ("fp8_e4m3", "mxfp8_e5m2"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_both_roundings_stay(one: str, other: str, dtype: torch.dtype) -> None:
    b = Builder()
    x = b.input(3, 64, dtype=dtype)
    first = b.fake(x, one)
    proof = proven(b.done(b.fake(first, other)), b.examples, stages=STAGES, more=True)
    assert proof.kinds["fused.requantize"] == 1 and proof.kinds["quantize"] == 1
    assert proof.kinds["dequantize"] == 1 and proof.the("fused.requantize").params["ports"][0] is not None


def test_static_scales() -> None:
    b = Builder()
    x = b.input(3, 64)
    scale, other = b.constant(torch.full((1, 1), 0.5)), b.constant(torch.full((1, 1), 0.3))
    fine = b.fake(x, "int8,dynamic=false", None, scale)
    proof = proven(
        b.done(b.fake(fine, "int4,dynamic=false", None, other)), b.examples, stages=STAGES, more=True
    )
    assert proof.kinds["fused.requantize"] == 1
    assert len(proof.the("fused.requantize").outputs) == 1


def test_the_float_user_keeps_the_floats() -> None:
    b = Builder()
    x = b.input(3, 64)
    first = b.fake(x, "mxfp8")
    proof = proven(
        b.done(b.fake(first, "int8-token"), b.call(aten.exp.default, first)), b.examples, stages=STAGES,
        more=True,
    )  # fmt: skip
    assert proof.kinds["fused.requantize"] == 1 and proof.kinds["dequantize"] == 2


def test_casts_that_do_nothing_are_looked_through_and_others_are_not() -> None:
    for dtype, count in ((torch.float32, 1), (torch.bfloat16, 0)):
        b = Builder()
        x = b.input(3, 64)
        given = b.call(aten.to.dtype, b.call(aten.detach.default, b.fake(x, "mxfp8")), dtype)
        proof = proven(b.done(b.fake(given, "mxint8")), b.examples, stages=STAGES, more=True)
        assert proof.kinds["fused.requantize"] == count


def test_arithmetic_between_stays() -> None:
    b = Builder()
    x = b.input(3, 64)
    given = b.call(aten.neg.default, b.fake(x, "mxfp8"))
    proof = proven(b.done(b.fake(given, "mxint8")), b.examples, stages=STAGES, more=True)
    assert proof.kinds["fused.requantize"] == 0


def test_stochastic_rounding_has_a_seed_and_stays() -> None:
    b = Builder()
    x = b.input(3, 64)
    proof = proven(
        b.done(b.fake(b.fake(x, "mxfp8"), "mxint8,rounding=stochastic")), b.examples, stages=STAGES, more=True
    )
    assert proof.kinds["fused.requantize"] == 0 and "seed" in proof.reasons("requantize")


def test_merging_the_two_would_have_been_wrong() -> None:
    """What the test above would miss if both schemes were as fine as each other."""
    x = example((3, 64))
    b = Builder()
    node = b.given(x)
    twice, once = b.fake(b.fake(node, "mxfp4"), "int8-token"), b.fake(node, "int8-token")
    two, one = b.done(twice, once)(x)
    assert not equal(two, one)
