"""Fold: constants that are quantized become codes and scales, made when somebody needs them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import graph.foreign  # noqa: F401  quantized_decomposed's operators
from blockscale.graph import models
from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import Cat, Permute, Reshape, Slice, Split
from blockscale.numerics.scheme import numbers_named
from blockscale.passes import pipeline
from blockscale.passes.log import Log
from numerics.moving import NUMBERS, tensor
from passes import fx_graphs, onnx_graphs
from passes.fx_graphs import aten, count, ours
from passes.moving_graphs import fake_quantizer, quantizer
from passes.proof import proven

both = pytest.mark.parametrize("builder", [fx_graphs.Builder, onnx_graphs.Builder], ids=["fx", "onnx"])
FOLD = ("fold",)


def weight(b: Any, *shape: int, dtype: torch.dtype = torch.float32) -> Any:
    return b.constant(torch.from_numpy(tensor(5, shape, specials=False)).to(dtype))


def params(q: list[Any], layout: Layout) -> list[Any]:
    return [v for v in q if v is not None]


@both
@pytest.mark.parametrize("numbers", NUMBERS, ids=str)
@pytest.mark.parametrize("shape", [(8, 64), (3, 40), (2, 3, 5)])
def test_codes_and_scales_are_those_of_the_run(builder: Any, shape: tuple[int, ...], numbers: Any) -> None:
    b = builder()
    layout = Layout(numbers, shape, (*(1,) * (len(shape) - 1), 32))
    q = quantizer(b, weight(b, *shape), layout)
    y = b.dequantize(q, weight(b, *shape), str(numbers), layout.block)
    proof = proven(b.done(*params(q, layout), y), [], stages=FOLD)
    assert not proof.nodes("quantize")
    assert proof.log.count("fold") == 1


@both
@pytest.mark.parametrize("scheme", ["mxfp4", "int8-channel", "nvfp4", "uint4-g16"])
def test_fake_quantized_weights(builder: Any, scheme: str) -> None:
    b = builder()
    w = weight(b, 8, 64)
    numbers = numbers_named(scheme.partition("-")[0])
    y = fake_quantizer(b, w, Layout(numbers, (8, 64), (1, 16)))
    proof = proven(b.done(y, w), [], stages=FOLD)
    assert not proof.nodes("fake_quantize")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    b = fx_graphs.Builder()
    w = weight(b, 8, 64, dtype=dtype)
    q = b.measure(w, "mxfp4")
    proof = proven(
        b.done(*q[:2], b.dequantize(q[:2], w, "mxfp4"), b.fake(w, "int8-channel")), [], stages=FOLD
    )
    assert not proof.nodes("quantize") and not proof.nodes("fake_quantize")


@both
def test_behind_moves_of_the_weight(builder: Any) -> None:
    b = builder()
    w = weight(b, 64, 8)
    moved = b.move(b.move(w, Permute((1, 0))), Reshape((2, 4, 64)))
    q = b.measure(moved, "mxfp4")
    proof = proven(b.done(*q[:2]), [], stages=FOLD)
    assert not proof.nodes("quantize") and not proof.nodes("permute")


@both
def test_moves_of_codes_and_scales_are_folded_too(builder: Any) -> None:
    b = builder()
    q = b.measure(weight(b, 8, 64), "mxfp8")
    codes, scales = (b.move(one, Permute((1, 0))) for one in q[:2])
    parts = b.move(codes, Split(0, (32, 32)))
    both_ = b.move(parts, Cat(1))
    proof = proven(b.done(both_, scales, b.move(scales, Slice(0, 1))), [], stages=FOLD)
    assert set(proof.kinds) <= {"output", "identity"}


@both
def test_a_float_user_keeps_the_float_weight(builder: Any) -> None:
    b = builder()
    w = weight(b, 8, 64)
    proof = proven(b.done(b.fake(w, "mxfp4"), w), [], stages=FOLD)
    assert not proof.nodes("fake_quantize")


def test_nothing_keeps_the_float_weight_alive() -> None:
    b = fx_graphs.Builder()
    q = b.measure(weight(b, 8, 64), "mxfp4")
    proof = proven(b.done(*q[:2]), [], stages=FOLD)
    attributes = [n for n in proof.after.graph.nodes if n.op == "get_attr"]
    shapes = {tuple(getattr(proof.after, str(n.target)).shape) for n in attributes}
    assert shapes == {(8, 32), (8, 2)}


def test_contents_are_made_once_and_only_when_needed() -> None:
    b = fx_graphs.Builder()
    q = b.measure(weight(b, 8, 64), "mxfp4")
    module = b.done(*q[:2])
    graph = models.snapshot(module)
    asked = []
    for constant in graph.constants:
        fetch = constant.const.fetch if constant.const else None
        object.__setattr__(constant.const, "fetch", lambda fetch=fetch: (asked.append(1), fetch())[1])
    log = Log()
    pipeline.run(graph, FOLD, log)
    assert log.count("fold") == 1 and not asked
    codes, scales = (
        v.const.fetch() for v in graph.constants if v.meta and v.meta.dtype == "uint8" and v.const
    )
    assert (codes.shape, scales.shape) == ((8, 32), (8, 2))
    assert len(asked) == 1


@both
def test_what_is_known_only_at_run_time_stays(builder: Any) -> None:
    b = builder()
    w, scale = weight(b, 8, 64), b.given(torch.full((1, 1), 0.25))
    q = b.quantize(w, "int8,dynamic=false", (0, 0), scale)
    proof = proven(b.done(q), b.examples, stages=FOLD)
    assert "is known only at run time" in proof.reasons("fold")
    assert len(proof.nodes("quantize")) == 1


def test_a_weight_that_is_written_to_stays() -> None:
    b = fx_graphs.Builder()
    w = weight(b, 8, 64)
    y = b.fake(w, "mxfp4")
    b.call(aten.mul_.Tensor, w, 1)
    graph = b.done(y)
    after = pipeline.optimize(graph, stages=FOLD, check=True)
    assert count(after, "fake_quantize") == 1


def test_foreign_quantizers_stay_until_they_are_ours() -> None:
    b = fx_graphs.Builder()
    w, scale = weight(b, 8, 64), b.constant(torch.rand(8) + 0.5)
    place = (scale, b.constant(torch.zeros(8, dtype=torch.int64)), 0, -127, 127, torch.int8)
    q = b.call(torch.ops.quantized_decomposed.quantize_per_channel.default, w, *place)
    y = b.call(torch.ops.quantized_decomposed.dequantize_per_channel.default, q, *place)
    module = b.done(y)
    proof = proven(module, [], stages=FOLD)
    assert "is not an operator of ours" in proof.reasons("fold")
    proof = proven(module, [], stages=("canonicalize", "fold"))
    assert not proof.nodes("quantize") and count(proof.after, "dequantize") == 1


def test_stochastic_rounding_of_a_constant_is_by_its_seed() -> None:
    b = fx_graphs.Builder()
    w = weight(b, 8, 64)
    place = b.place(w, "mxfp4,rounding=stochastic")
    made = [b.call(ours.fake_quantize.default, w, *place, seed=seed) for seed in (3, 4)]
    proof = proven(b.done(*made), [], stages=FOLD)
    one, other = fx_graphs.run(proof.after, [])
    assert isinstance(one, Tensor) and not torch.equal(one, other)


@both
def test_scalars(builder: Any) -> None:
    b = builder()
    w = b.constant(torch.tensor(1.5))
    q = b.measure(w, "int8", ())
    proof = proven(b.done(*q[:2], b.fake(w, "uint8", ())), [], stages=FOLD)
    assert not proof.nodes("quantize")
    assert np.shape(fx_graphs.run(proof.after, [])[0]) == () if builder is fx_graphs.Builder else True


@both
def test_scales_behind_a_view_are_constants(builder: Any) -> None:
    """What exports as a view of a buffer: one scale a channel, given as a vector."""
    b = builder()
    x, w = b.input(4, 64), weight(b, 8, 64)
    one, each = b.constant(torch.full((1,), 0.25)), b.constant(torch.linspace(0.1, 0.3, 8))
    scheme = "int8,dynamic=false"
    y = b.fake(
        b.fake(x, scheme, None, b.move(one, Reshape((1, 1)))), scheme, None, b.move(one, Reshape((1, 1)))
    )
    z = b.fake(w, "int8-channel,dynamic=false", None, b.move(each, Reshape((8, 1))))
    proof = proven(b.done(y, z), b.examples, stages=("canonicalize", "cse", "fold", "absorb"))
    assert proof.kinds["quantize"] == 1 and proof.kinds["reshape"] == 0
    assert proof.log.count("fold") == 1 and proof.log.count("absorb") == 1
