"""The stages of targets that compute on floats: quantize and dequantize become one, constants become codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from blockscale.numerics import native
from blockscale.numerics.layout import bind
from blockscale.numerics.scheme import scheme_named
from blockscale.passes.pipeline import FLOATS
from passes import fx_graphs, onnx_graphs
from passes.proof import proven

NAMES = ("mxfp4", "mxint8", "nvfp4", "int8-token", "uint8", "int4-g32", "bfp16", "mxfp8,rule=ceil")
builders = pytest.mark.parametrize("of", [fx_graphs, onnx_graphs], ids=["fx", "onnx"])


def array(b: Any, values: Any) -> Any:
    return torch.from_numpy(values) if isinstance(b, fx_graphs.Builder) else values


def add(b: Any, one: Any, other: Any) -> Any:
    return b.call("Add" if isinstance(b, onnx_graphs.Builder) else fx_graphs.aten.add.Tensor, one, other)


@builders
@pytest.mark.parametrize("name", NAMES)
def test_a_pair_becomes_one_node(name: str, of: Any) -> None:
    b = of.Builder()
    x = b.input(3, 64)
    proof = proven(b.done(b.fake(x, name)), b.examples, stages=("canonicalize", "join"))
    assert proof.kinds["fake_quantize"] == 1 and not proof.kinds["quantize"] + proof.kinds["dequantize"]


@builders
def test_a_static_pair_becomes_one_node(of: Any) -> None:
    b = of.Builder()
    x, scale = b.input(3, 64), b.constant(array(b, np.full((1, 1), 0.5, np.float32)))
    proof = proven(
        b.done(b.fake(x, "int8,dynamic=false", None, scale)), b.examples, stages=("canonicalize", "join")
    )
    assert proof.kinds["fake_quantize"] == 1 and not proof.kinds["quantize"]
    assert proof.the("fake_quantize").operand(1) is not None


@builders
@pytest.mark.parametrize("name", NAMES)
def test_constants_become_codes_and_activations_stay_one_node(name: str, of: Any) -> None:
    b = of.Builder()
    x = b.input(3, 64)
    weight = b.constant(array(b, np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)))
    total = add(b, b.fake(x, name), b.fake(weight, name))
    proof = proven(b.done(total), b.examples, stages=FLOATS)
    assert (
        proof.kinds["fake_quantize"] == 1 and proof.kinds["dequantize"] == 1 and not proof.kinds["quantize"]
    )


@pytest.mark.parametrize("name", ["mxfp4", "mxfp6", "mxfp8", "mxint8", "bfp16", "mx9", "mx6", "mx4"])
@pytest.mark.parametrize("dialect", ["ocp", "quark"])
def test_what_has_no_codes_gets_those_of_ocp(name: str, dialect: str) -> None:
    b = onnx_graphs.Builder()
    array = np.abs(np.random.default_rng(1).standard_normal((6, 64))).astype(np.float32) + np.float32(0.01)
    text = f"{name},dialect={dialect}"
    proof = proven(b.done(b.fake(b.constant(array), text)), b.examples, stages=FLOATS)
    assert proof.kinds["dequantize"] == 1 and not proof.kinds["fake_quantize"]
    values = native.fake_quantize(array, bind(scheme_named(text), array.shape))
    (found,) = onnx_graphs.run(proof.after, [])
    np.testing.assert_array_equal(found, values)


def test_minus_128_of_quark_is_a_code() -> None:
    b = onnx_graphs.Builder()
    array = np.full((1, 32), -1.999, np.float32)
    proof = proven(b.done(b.fake(b.constant(array), "mxint8,dialect=quark")), b.examples, stages=FLOATS)
    assert proof.kinds["dequantize"] == 1
    assert (onnx_graphs.run(proof.after, [])[0] == -2).all()


def test_a_constant_with_another_bit_stays_float() -> None:
    """AMD Quark keeps the sign of a zero in int8, which has no code for it."""
    b = onnx_graphs.Builder()
    array = np.where(np.arange(64) % 3, -0.0, 1.0).astype(np.float32).reshape(2, 32)
    proof = proven(b.done(b.fake(b.constant(array), "mxint8,dialect=quark")), b.examples, stages=FLOATS)
    assert not proof.kinds["dequantize"] and not proof.kinds["fake_quantize"]
    assert "not those of codes of ocp" in proof.reasons("pack")


def test_other_scales_do_not_join() -> None:
    """A dequantize that reads the codes in another way is none of the quantize's."""
    b = onnx_graphs.Builder()
    x = b.input(2, 64)
    one, two = (b.constant(np.full((1, 1), scale, np.float32)) for scale in (0.5, 0.25))
    codes = b.quantize(x, "int8,dynamic=false", None, one)
    y = b.dequantize((codes, two), x, "int8,dynamic=false")
    proof = proven(b.done(y), b.examples, stages=("join",))
    assert proof.kinds["quantize"] == 1 and "its scale is not that of" in proof.reasons("join")
