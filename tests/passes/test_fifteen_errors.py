"""Errors that systems in use have made with quantizes that move: none is made here. By number, as they were listed."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import fx

import graph.foreign  # noqa: F401  tensor_cast's operators
from blockscale.graph import models
from blockscale.graph.quant import layout_of, quant_of
from blockscale.graph.view import Node
from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import Permute, Reshape, Slice, Split
from blockscale.numerics.scheme import numbers_named
from blockscale.passes import pipeline
from blockscale.passes.log import Log
from passes import fx_graphs, onnx_graphs
from passes.fx_graphs import aten, ours
from passes.moving_graphs import quantizer
from passes.proof import is_input, proven, shape

cast = torch.ops.tensor_cast
both = pytest.mark.parametrize("builder", [fx_graphs.Builder, onnx_graphs.Builder], ids=["fx", "onnx"])
ROWS = [
    ("int8-token", (1, 0)),
    ("uint8-token", (1, 0)),
    ("mxfp4", (1, 32)),
    ("mxfp6", (1, 32)),
    ("nvfp4", (1, 16)),
]
rows = pytest.mark.parametrize(("scheme", "block"), ROWS)


def given(q: list[Any], scheme: str) -> list[Any]:
    """Those of the outputs of a dynamic quantize that it has."""
    numbers = numbers_named(scheme.partition("-")[0])
    present = (True, True, numbers.zero_point, numbers.tensor_scale)
    return [value for value, has in zip(q, present, strict=True) if has]


def relu(b: Any, x: Any) -> Any:
    return b.call("Relu", x) if isinstance(b, onnx_graphs.Builder) else b.call(aten.relu.default, x)


def times(b: Any, x: Any, factor: float) -> Any:
    if isinstance(b, onnx_graphs.Builder):
        return b.call("Mul", x, b.constant(np.float32(factor)))
    return b.call(aten.mul.Tensor, x, factor)


@both
@rows
def test_01_all_users_of_a_view_move_together(builder: Any, scheme: str, block: Any) -> None:
    b = builder()
    x = b.input(2, 4, 64)
    view = b.move(x, Reshape((8, 64)))
    made = [v for _ in range(3) for v in given(b.measure(view, scheme, block), scheme)]
    made += given(b.measure(x, scheme, (1, *block)), scheme)
    proof = proven(b.done(*made), b.examples)
    assert is_input(proof.the("quantize").operand(0))


@both
@rows
def test_02_scales_get_a_reshape_of_their_own(builder: Any, scheme: str, block: Any) -> None:
    b = builder()
    q = given(b.measure(b.move(b.input(2, 3, 64), Reshape((6, 64))), scheme, block), scheme)
    proof = proven(b.done(*q), b.examples)
    node = proof.the("quantize")
    assert shape(node.operand(0)) == (2, 3, 64)
    groups = 64 // block[1] if block[1] else 1
    assert shape(node.outputs[1]) == (2, 3, groups)
    assert proof.block("quantize") == (1, *block)


@both
@pytest.mark.parametrize(
    ("scheme", "block"), [("int8-channel", (0, 1)), ("mxfp4", (1, 32)), ("mxint8", (1, 32))]
)
def test_03_blocks_that_a_view_tears_stay(builder: Any, scheme: str, block: Any) -> None:
    b = builder()
    view = b.move(b.input(4, 64), Reshape((16, 16)))
    q = given(b.measure(view, scheme, block), scheme)
    proof = proven(b.done(*q), b.examples)
    assert not is_input(proof.the("quantize").operand(0))
    assert "not lifted over" in proof.reasons("lift")


@both
def test_03_rows_that_a_view_cuts_are_blocks_of_the_longer_rows(builder: Any) -> None:
    """It is legal where the operator can say it, and wrong only with the old layout."""
    b = builder()
    q = given(b.measure(b.move(b.input(4, 64), Reshape((16, 16))), "int8-token"), "int8")
    proof = proven(b.done(*q), b.examples)
    assert proof.block("quantize") == (1, 16)


def test_03_an_operator_that_cannot_say_blocks_stays() -> None:
    b = fx_graphs.Builder()
    view = b.call(aten.view.default, b.given(torch.randn(4, 64)), [16, 16])
    proof = proven(b.done(*b.items(b.call(cast.dynamic_quantize_symmetric.default, view, [-1]))), b.examples)
    assert not is_input(proof.the("quantize").operand(0))
    assert "no blocks within a dimension" in proof.reasons("lift")


@pytest.mark.parametrize("dims", [[1], [-1]])
def test_04_dimensions_are_mapped_across_ranks(dims: list[int]) -> None:
    b = fx_graphs.Builder()
    x = b.given(torch.randn(2, 3, 64))
    view = b.call(aten.view.default, x, [6, 64])
    made = b.items(b.call(cast.dynamic_quantize_asymmetric.default, view, dims))
    proof = proven(b.done(*made), b.examples)
    (q,) = [n for n in proof.after.graph.nodes if n.target is cast.dynamic_quantize_asymmetric.default]
    assert q.args[0].op == "placeholder"
    assert [d % 3 for d in q.args[1]] == [2]


@both
def test_05_a_scale_of_each_channel_stays_where_the_channels_change(builder: Any) -> None:
    b = builder()
    x = b.input(4, 64)
    layout = Layout(numbers_named("int8,dynamic=false"), (8, 32), (0, 1))
    q = quantizer(b, b.move(x, Reshape((8, 32))), layout)[0]
    proof = proven(b.done(q), b.examples)
    assert not is_input(proof.the("quantize").operand(0))
    assert "not lifted over" in proof.reasons("lift")


@both
def test_06_a_scale_made_of_the_same_view_is_made_first(builder: Any) -> None:
    b = builder()
    x = b.given(torch.rand(2, 3, 8) + 0.5)
    view = b.move(x, Reshape((6, 8)))
    scale = b.move(b.move(times(b, view, 0.25), Slice(0, 0, 1)), Slice(1, 0, 1))
    q = b.quantize(view, "int8,dynamic=false", (0, 0), scale)
    proof = proven(b.done(q), b.examples)
    node = proof.the("quantize")
    assert is_input(node.operand(0))
    scale_made_by = node.operand(1)
    assert scale_made_by is not None and not is_input(scale_made_by)


@both
def test_06_a_scale_made_after_the_view(builder: Any) -> None:
    b = builder()
    x, y = b.input(2, 3, 8), b.given(torch.rand(1, 1) + 0.5)
    view = b.move(x, Reshape((6, 8)))
    late = times(b, y, 0.5)
    q = b.quantize(view, "int8,dynamic=false", (0, 0), late)
    proof = proven(b.done(view, q), b.examples)
    assert is_input(proof.the("quantize").operand(0))


def item(b: fx_graphs.Builder, node: fx.Node, index: int) -> fx.Node:
    made = b.graph.call_function(operator.getitem, (node, index))
    made.meta["val"] = node.meta["val"][index]
    return made


@pytest.mark.parametrize(("mine", "its"), [((0,), (1, 2)), ((2,), (0,)), ((1,), (1,)), ((0, 2), (2,))])
def test_07_twins_of_which_one_uses_other_outputs(mine: tuple[int, ...], its: tuple[int, ...]) -> None:
    b = fx_graphs.Builder()
    x = b.input(2, 3, 64)
    one = b.call(ours.dynamic_quantize.default, x, *b.place(x, "uint8-token"))
    view = b.call(aten.view.default, x, [6, 64])
    other = b.call(ours.dynamic_quantize.default, view, *b.place(view, "uint8-token"))
    made = [item(b, one, i) for i in mine] + [item(b, other, i) for i in its]
    proof = proven(b.done(*made), b.examples)
    assert len(proof.nodes("quantize")) == 1


@pytest.mark.parametrize(("mine", "its"), [((0,), (1, 2)), ((2,), (0,)), ((0, 2), (2,))])
def test_07_twins_in_onnx(mine: tuple[int, ...], its: tuple[int, ...]) -> None:
    b = onnx_graphs.Builder()
    x = b.input(2, 3, 64)
    one, other = b.measure(x, "uint8-token"), b.measure(b.move(x, Reshape((6, 64))), "uint8-token")
    proof = proven(b.done(*(one[i] for i in mine), *(other[i] for i in its)), b.examples)
    assert len(proof.nodes("quantize")) == 1


class _Sum(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + ours.fake_quantize(x, "mxfp4", [1, 32])
        return y


def test_08_an_operator_gives_a_fresh_tensor() -> None:
    x = torch.randn(4, 64)
    exported = torch.export.export(_Sum(), (x,))
    (add,) = [n for n in exported.graph.nodes if n.target is aten.add.Tensor]
    assert add.args[0].op == "placeholder" and add.args[1].target is ours.fake_quantize.default
    after = pipeline.optimize(exported, stages=pipeline.COMBINE, check=True)
    assert torch.equal(after.module()(x), _Sum()(x))


def test_08_on_fake_tensors_too() -> None:
    b = fx_graphs.Builder()
    x = b.given(torch.randn(4, 64))
    codes = b.given(torch.zeros(4, 64, dtype=torch.int8))
    scale = b.given(torch.ones(1, 1))
    made = [
        b.fake(x, "mxfp4"), b.quantize(x, "int8,dynamic=false", (0, 0), scale),
        b.dequantize([codes, scale], x, "int8,dynamic=false", (0, 0)), *b.measure(x, "uint8"),
    ]  # fmt: skip
    memory = [node.meta["val"].untyped_storage()._cdata for node in [x, codes, scale, *made]]
    assert len(set(memory)) == len(memory)


@both
def test_09_a_float_user_keeps_the_float_value(builder: Any) -> None:
    b = builder()
    x = b.input(4, 64)
    y = relu(b, x)
    view = b.move(y, Reshape((2, 2, 64)))
    proof = proven(b.done(b.fake(view, "mxfp4"), times(b, view, 3.0), y), b.examples)
    assert len(proof.nodes("fake_quantize")) == 1


@both
def test_09_two_quantizers_get_each_its_own(builder: Any) -> None:
    b = builder()
    y = relu(b, b.input(4, 64))
    view = b.move(y, Reshape((2, 2, 64)))
    proof = proven(b.done(*[b.fake(view, s) for s in ("mxfp4", "int8-token", "mxfp4")]), b.examples)
    assert len(proof.nodes("fake_quantize")) == 2


@both
@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize(
    ("one", "other"), [("mxfp4", "int8-token"), ("int8-token", "mxfp4"), ("mxint8", "nvfp4")]
)
def test_10_both_steps_of_a_requantize_stay(builder: Any, one: str, other: str, between: bool) -> None:
    b = builder()
    x = b.input(4, 64)
    y = b.fake(x, one)
    if between:
        y = b.move(y, Permute((1, 0)))
    z = b.measure(y, other)
    proof = proven(
        b.done(*given(z, other)), b.examples, stages=("canonicalize", *pipeline.COMBINE, "sink", "absorb")
    )
    assert len(proof.nodes("quantize")) + len(proof.nodes("fake_quantize")) == 2


@both
@pytest.mark.parametrize(("axis", "after"), [(-1, 1), (0, 2), (1, 0)])
def test_11_the_axis_of_metadata_is_counted_from_the_front_and_moved(
    builder: Any, axis: int, after: int
) -> None:
    b = builder()
    x = relu(b, b.input(32, 64, 96))
    block = tuple(32 if i == axis % 3 else 1 for i in range(3))
    y = b.move(b.fake(x, "mxint8", block), Permute((1, 2, 0)))
    graph = models.snapshot(b.done(relu(b, y)))
    pipeline.run(graph, pipeline.METADATA, Log(), check=True)
    (moved,) = [node for node in graph.nodes if node.kind == "permute"]
    assert graph.notes[moved.outputs[0]].axis == after
    (first,) = [note for value, note in graph.notes.items() if value is not moved.outputs[0]]
    assert first.axis == axis % 3


def product(scheme: str, factor: Any, side: str, bias: bool) -> tuple[Any, Any]:
    """linear(x · k, W, b) or linear(x, W, b) · k; x and W are codes, W is square so that shapes cannot tell."""
    n = 32
    generator = torch.Generator().manual_seed(0)
    b = fx_graphs.Builder()
    x, step = b.given(torch.randn(4, n, generator=generator)), b.constant(torch.full((1, 1), 0.05))
    static = "int8,dynamic=false"
    x = b.dequantize([b.quantize(x, static, (0, 0), step), step], x, static, (0, 0))
    w = b.constant(torch.randn(n, n, generator=generator))
    q = b.measure(w, scheme)
    w = b.dequantize([q[0], q[1], q[2] if scheme.startswith("uint") else None], w, scheme)
    k = b.constant(factor) if isinstance(factor, torch.Tensor) else factor
    added = b.constant(torch.randn(n, generator=generator)) if bias else None
    if side == "before":
        return b, b.call(aten.linear.default, b.call(aten.mul.Tensor, x, k), w, added)
    return b, b.call(aten.mul.Tensor, b.call(aten.linear.default, x, w, added), k)


POWERS = 2.0 ** (torch.arange(32) % 3 - 1.0)
FACTORS = ("fold", "fuse_scale")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scheme", ["int8-channel", "uint8-channel"])
def test_12_a_factor_of_each_channel_against_a_scale_of_each(scheme: str, bias: bool) -> None:
    """[K] against [K, 1] is [K, 1], and the bias is scaled too."""
    b, y = product(scheme, POWERS, "behind", bias)
    proof = proven(b.done(y), b.examples, stages=FACTORS)
    assert proof.kinds["mul"] == 0
    (node,) = [one for one in proof.nodes("dequantize") if one.operands[0].const is not None]
    assert shape(node.operand(1)) == (32, 1)


@pytest.mark.parametrize("scheme", ["int8-channel", "uint8-channel"])
def test_12_a_factor_of_the_other_dimension_stays(scheme: str) -> None:
    b, y = product(scheme, POWERS, "before", False)
    proof = proven(b.done(y), b.examples, stages=FACTORS)
    assert proof.kinds["mul"] == 1 and proof.reasons()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("side", ["before", "behind"])
@pytest.mark.parametrize("factor", [-1.0, -2.0, 0.0, -0.0, 0.5])
@pytest.mark.parametrize("scheme", ["int8-channel", "uint8-channel", "mxfp8", "mxint8"])
def test_12_negative_factors_and_zero(scheme: str, factor: float, side: str, bias: bool) -> None:
    """Codes and zero points are reflected, or zeroed, or the factor stays: the same bits in any case."""
    b, y = product(scheme, factor, side, bias)
    proof = proven(b.done(y), b.examples, stages=FACTORS)
    assert proof.kinds["mul"] == 0 or proof.reasons()


@both
@pytest.mark.parametrize("scale", [0.125, 0.25])
def test_13_rounding_and_saturation_in_between_are_kept(builder: Any, scale: float) -> None:
    """Only equal parameters undo one another; with others the values in between were rounded, and cut."""
    b = builder()
    x = b.input(4, 64)
    one, other = (b.constant(torch.full((1, 1), s)) for s in (0.25, scale))
    numbers = "int8,dynamic=false"
    codes = b.quantize(x, numbers, (0, 0), one)
    y = relu(b, b.dequantize([codes, one], x, numbers, (0, 0)))
    q = b.quantize(y, numbers, (0, 0), other)
    z = b.dequantize([q, other], x, numbers, (0, 0))
    stages = (*pipeline.COMBINE, "absorb", "sink", "cse")
    proof = proven(b.done(z), b.examples, stages=stages, more=True)
    assert len(proof.nodes("quantize")) == (1 if scale == 0.25 else 2)


@both
@pytest.mark.parametrize(
    ("block", "permuted"),
    [((0, 32), (32, 0)), ((2, 0), (0, 2)), ((2, 32), (32, 2)), ((0, 1), (1, 0)), ((1, 0), (0, 1))],
)
def test_14_blocks_are_not_taken_for_channels(builder: Any, block: Any, permuted: Any) -> None:
    """A scale [1, G] on [N, K] is one for each group of columns, [N/2, 1] one for two rows."""
    b = builder()
    x = b.input(64, 8)
    layout = Layout(numbers_named("int8,dynamic=false"), (8, 64), block)
    q, scale, *_ = quantizer(b, b.move(x, Permute((1, 0))), layout)
    y = b.dequantize([q, scale], b.move(x, Permute((1, 0))), "int8,dynamic=false", block)
    proof = proven(b.done(q, y), b.examples, stages=("lift",))
    node = proof.the("quantize")
    assert is_input(node.operand(0)) and quant_of(node).block == permuted
    found = layout_of(node, proof.graph.alphabet)
    assert isinstance(found, Layout) and found.per_channel == (sorted(block) == [0, 1])


@pytest.mark.parametrize("block", [[8, 32], [2, 64], [4, 16]])
def test_14_nor_in_other_peoples_operators(block: list[int]) -> None:
    b = fx_graphs.Builder()
    x = b.given(torch.randn(2, 4, 64))
    counts = (8 // block[0], 64 // block[1])
    scale = b.constant(torch.rand(counts) + 0.1)
    zero = b.constant(torch.arange(counts[0] * counts[1], dtype=torch.int32).reshape(counts))
    view = b.call(aten.view.default, x, [8, 64])
    q = b.call(torch.ops.torchao.quantize_affine.default, view, block, scale, zero, torch.int8)
    proof = proven(b.done(q), b.examples)
    node = proof.the("quantize")
    layout = layout_of(node, proof.graph.alphabet)
    assert isinstance(layout, Layout) and not layout.per_channel


@both
@pytest.mark.parametrize("scheme", ["int8-token", "uint8-token", "mxfp4", "nvfp4", "mxfp6"])
def test_15_new_nodes_have_shapes_and_dtypes(builder: Any, scheme: str) -> None:
    b = builder()
    x = b.input(2, 4, 64)
    view = b.move(b.move(x, Permute((1, 0, 2))), Reshape((8, 64)))
    q = b.measure(view, scheme)
    numbers = numbers_named(scheme.partition("-")[0])
    params = [*q[:2], q[2] if numbers.zero_point else None, q[3] if numbers.tensor_scale else None]
    y = b.dequantize(params, view, scheme)
    parts = b.move(y, Split(0, (4, 4)))
    proof = proven(b.done(*parts, *given(q, scheme)), b.examples)
    if isinstance(proof.after, ir.Model):
        values = [v for node in proof.after.graph for v in node.outputs]
        assert all(v.type is not None and v.shape is not None for v in values)
    else:
        assert all("val" in n.meta for n in proof.after.graph.nodes if n.op != "output")
    assert all(known(node) for node in proof.graph.nodes)


def known(node: Node) -> bool:
    return all(value.meta is not None for value in node.outputs)
