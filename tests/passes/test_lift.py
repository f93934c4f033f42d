"""Lift: when a quantize that may go up does, and what the log says where it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import graph.foreign  # noqa: F401  tensor_cast's operators
from blockscale.graph.quant import quant_of
from blockscale.numerics.moves import Cat, Gather, Permute, Reshape, Slice, Split
from blockscale.passes import lift_combine
from blockscale.passes.log import Log
from passes import fx_graphs, onnx_graphs
from passes.fx_graphs import aten, count, example, ours, targets
from passes.proof import is_input, proven, shape

cast = torch.ops.tensor_cast
LIFT = ("cse", "lift", "cse")
both = pytest.mark.parametrize("builder", [fx_graphs.Builder, onnx_graphs.Builder], ids=["fx", "onnx"])


# ------------------------------------------------------------------------- profit


@both
def test_a_slice_of_the_last_row_alone_is_quantized_alone(builder: Any) -> None:
    b = builder()
    last = b.move(b.input(8, 16, 64), Slice(1, -1))
    proof = proven(b.done(b.fake(last, "mxfp4")), b.examples, stages=LIFT)
    assert shape(proof.the("fake_quantize").operand(0)) == (8, 1, 64)
    assert "that would quantize all of %x1, 8×16×64, for 8×1×64" in proof.reasons("lift")


@both
def test_slices_that_together_are_all_become_one(builder: Any) -> None:
    b = builder()
    x = b.input(8, 64)
    parts = [b.move(x, Slice(0, i, i + 4)) for i in (0, 4)]
    proof = proven(b.done(*[b.fake(part, "mxfp4") for part in parts]), b.examples, stages=LIFT)
    assert is_input(proof.the("fake_quantize").operand(0))


@both
def test_slices_that_overlap_enough_become_one(builder: Any) -> None:
    b = builder()
    x = b.input(8, 64)
    parts = [b.move(x, Slice(0, a, z)) for a, z in ((0, 6), (3, 7))]
    proof = proven(b.done(*[b.fake(part, "mxfp4") for part in parts]), b.examples, stages=LIFT)
    assert len(proof.nodes("fake_quantize")) == 1


@both
def test_slices_that_are_less_than_all_stay(builder: Any) -> None:
    b = builder()
    x = b.input(8, 64)
    parts = [b.move(x, Slice(0, a, z)) for a, z in ((0, 3), (3, 7))]
    proof = proven(b.done(*[b.fake(part, "mxfp4") for part in parts]), b.examples, stages=LIFT)
    assert len(proof.nodes("fake_quantize")) == 2


@both
def test_the_same_piece_twice_does_not_count_twice(builder: Any) -> None:
    b = builder()
    x = b.input(8, 64)
    parts = [b.move(b.move(x, Slice(0, 0, 4)), Reshape((4, 2, 32))) for _ in range(3)]
    proof = proven(b.done(*[b.fake(part, "mxfp4") for part in parts]), b.examples, stages=LIFT)
    (node,) = proof.nodes("fake_quantize")
    assert not is_input(node.operand(0))


@both
def test_a_slice_of_what_is_quantized_anyway_takes_from_it(builder: Any) -> None:
    b = builder()
    x = b.input(8, 64)
    last = b.move(x, Slice(0, 7))
    proof = proven(b.done(b.fake(last, "mxfp4"), b.fake(x, "mxfp4")), b.examples, stages=LIFT)
    assert is_input(proof.the("fake_quantize").operand(0))


@both
def test_rows_that_are_repeated_are_quantized_once(builder: Any) -> None:
    b = builder()
    rows = b.move(b.input(3, 64), Gather(0, (0, 0, 1, 2, 2, 1)))
    proof = proven(b.done(b.fake(rows, "mxfp4")), b.examples, stages=LIFT)
    assert shape(proof.the("fake_quantize").operand(0)) == (3, 64)


# ------------------------------------------------------------------------- views and splits


@both
def test_all_users_of_a_view_move_together(builder: Any) -> None:
    """Also over a second view of the same tensor, and with quantizers of two kinds."""
    b = builder()
    x = b.input(2, 4, 64)
    one, other = b.move(x, Reshape((8, 64))), b.move(b.move(x, Permute((1, 0, 2))), Reshape((4, 2, 1, 64)))
    made = [b.fake(v, s) for v in (one, other, one) for s in ("mxfp4", "int8-token")]
    proof = proven(b.done(*made), b.examples, stages=LIFT)
    nodes = proof.nodes("fake_quantize")
    assert len(nodes) == 2 and all(is_input(node.operand(0)) for node in nodes)


@both
def test_a_float_user_keeps_the_view(builder: Any) -> None:
    b = builder()
    x = b.input(2, 4, 64)
    view = b.move(x, Reshape((8, 64)))
    proof = proven(b.done(b.fake(view, "mxfp4"), view), b.examples, stages=LIFT)
    assert is_input(proof.the("fake_quantize").operand(0))
    assert proof.kinds["reshape"] == 2


@both
def test_parts_of_a_split_are_quantized_before_it(builder: Any) -> None:
    b = builder()
    parts = b.move(b.input(4, 96), Split(1, (32, 32, 32)))
    proof = proven(b.done(*[b.fake(part, "mxfp4") for part in parts]), b.examples, stages=LIFT)
    assert is_input(proof.the("fake_quantize").operand(0))


@both
def test_one_part_of_a_split_is_not(builder: Any) -> None:
    b = builder()
    first, *rest = b.move(b.input(4, 96), Split(1, (32, 32, 32)))
    proof = proven(b.done(b.fake(first, "mxfp4"), *rest), b.examples, stages=LIFT)
    assert not is_input(proof.the("fake_quantize").operand(0))


# ------------------------------------------------------------------------- cats


@both
def test_a_static_quantize_goes_above_a_cat_whose_parts_have_it(builder: Any) -> None:
    b = builder()
    parts = [b.input(4, 64), b.input(2, 64)]
    scale = b.constant(torch.full((1, 1), 0.25))
    numbers, block = "int8,dynamic=false", (0, 0)
    made = [b.quantize(x, numbers, block, scale) for x in (*parts, b.move(parts, Cat(0)))]
    proof = proven(b.done(*made), b.examples, stages=LIFT)
    assert len(proof.nodes("quantize")) == 2


@both
def test_a_cat_is_not_crossed_where_a_branch_gains_nothing(builder: Any) -> None:
    b = builder()
    parts = [b.input(4, 64), b.input(2, 64)]
    scale = b.constant(torch.full((1, 1), 0.25))
    numbers, block = "int8,dynamic=false", (0, 0)
    made = [b.quantize(x, numbers, block, scale) for x in (parts[0], b.move(parts, Cat(0)))]
    proof = proven(b.done(*made), b.examples, stages=LIFT)
    assert len(proof.nodes("quantize")) == 2
    assert "nothing is gained on %x2" in proof.reasons("lift")


@both
def test_other_static_scales_on_the_parts_are_no_reason(builder: Any) -> None:
    b = builder()
    parts = [b.input(4, 64), b.input(2, 64)]
    scales = [b.constant(torch.full((1, 1), s)) for s in (0.25, 0.5, 0.25)]
    values = (*parts, b.move(parts, Cat(0)))
    made = [b.quantize(x, "int8,dynamic=false", (0, 0), s) for x, s in zip(values, scales, strict=True)]
    proof = proven(b.done(*made), b.examples, stages=LIFT)
    assert len(proof.nodes("quantize")) == 3


def test_a_cat_of_products_is_quantized_by_the_products() -> None:
    b = fx_graphs.Builder()
    x = b.given(torch.randn(4, 32))
    products = [b.call(aten.linear.default, x, b.constant(torch.randn(n, 32))) for n in (32, 64)]
    proof = proven(b.done(b.fake(b.call(aten.cat.default, products, 1), "mxfp4")), b.examples, stages=LIFT)
    assert count(proof.after, "fake_quantize") == 2


# ------------------------------------------------------------------------- never


@both
@pytest.mark.parametrize("scheme", ["int8", "uint8", "nvfp4"])
@pytest.mark.parametrize(
    "move",
    [Slice(0, 0, 4), Split(0, (4, 4)), Gather(0, (0, 1, 2, 3, 4, 5, 6, 6))],
    ids=lambda m: type(m).__name__,
)
def test_what_is_measured_over_the_tensor_does_not_cross_a_part_of_it(
    builder: Any, scheme: str, move: Any
) -> None:
    b = builder()
    x = b.input(8, 64)
    made = b.move(x, move)
    parts = made if isinstance(made, list) else [made]
    outputs = [b.fake(part, scheme) for part in (*parts, x)]
    proof = proven(b.done(*outputs), b.examples, stages=LIFT)
    assert len(proof.nodes("fake_quantize")) == len(outputs)


@both
@pytest.mark.parametrize("scheme", ["int8", "nvfp4"])
def test_what_is_measured_over_the_tensor_does_not_cross_a_cat(builder: Any, scheme: str) -> None:
    b = builder()
    parts = [b.input(4, 64), b.input(4, 64)]
    outputs = [b.fake(part, scheme) for part in (*parts, b.move(parts, Cat(0)))]
    proof = proven(b.done(*outputs), b.examples, stages=LIFT)
    assert len(proof.nodes("fake_quantize")) == 3


@pytest.mark.parametrize("move", [Reshape((8, 64)), Permute((1, 0, 2)), Slice(0, 0, 1)])
def test_stochastic_rounding_never_moves(move: Any) -> None:
    b = fx_graphs.Builder()
    x = b.input(2, 4, 64)
    views = [b.move(x, move) for _ in range(2)]
    made = [b.fake(view, "mxfp4,rounding=stochastic") for view in views]
    proof = proven(b.done(*made), b.examples, stages=LIFT)
    nodes = proof.nodes("fake_quantize")
    assert len(nodes) == 2 and not any(is_input(node.operand(0)) for node in nodes)
    assert "stochastic" in proof.reasons("lift")


@pytest.mark.parametrize("written", ["input", "view", "result"])
def test_what_is_written_to_in_between_stays(written: str) -> None:
    b = fx_graphs.Builder()
    x = b.input(2, 4, 64)
    view = b.call(aten.view.default, x, [8, 64])
    first = b.fake(view, "mxfp4")
    b.call(aten.mul_.Tensor, {"input": x, "view": view, "result": first}[written], 2)
    second = b.fake(b.call(aten.view.default, x, [8, 64]), "mxfp4")
    proof = proven(b.done(first, second), b.examples, stages=LIFT)
    assert len(proof.nodes("fake_quantize")) == 2
    assert written == "result" or "memory that the graph writes to" in proof.reasons("lift")


def test_an_unknown_operator_stays_and_the_log_says_so() -> None:
    b = fx_graphs.Builder()
    x = b.input(4, 64)
    turned = b.call(aten.rot90.default, x, 1, [0, 1])
    cropped = b.call(aten.constant_pad_nd.default, x, [-1, 0], 0)
    proof = proven(
        b.done(b.fake(turned, "int8-token"), b.fake(cropped, "int8-token")), b.examples, stages=LIFT
    )
    assert targets(proof.after) == targets(proof.before)
    reasons = proof.reasons("lift")
    assert "(aten.rot90.default): it is not known" in reasons
    assert "(aten.constant_pad_nd.default): it crops" in reasons


# ------------------------------------------------------------------------- sizes of the run


def test_symbolic_sizes() -> None:
    b = fx_graphs.Builder()
    x = b.input(2, 3, 64, dynamic=[0, 1])
    n = b.call(torch.ops.aten.sym_size.int, x, 0), b.call(torch.ops.aten.sym_size.int, x, 1)
    view = b.call(aten.view.default, x, [-1, 64])
    turned = b.call(aten.permute.default, x, [1, 0, 2])
    again = b.call(aten.reshape.default, turned, [n[1], n[0], 2, 32])
    made = [
        b.fake(view, "mxfp4"),
        b.fake(turned, "mxfp4"),
        b.fake(again, "mxfp4"),
        *b.measure(view, "uint8-token")[:3],
    ]
    proof = proven(b.done(*made), b.examples, [example((5, 1, 64))], [example((1, 7, 64))], stages=LIFT)
    assert is_input(proof.the("fake_quantize").operand(0)) and is_input(proof.the("quantize").operand(0))


# ------------------------------------------------------------------------- foreign operators


def test_lift_combine_keeps_foreign_operators() -> None:
    """A graph of tensor_cast operators comes back as one, in the form that its own patterns look for."""
    b = fx_graphs.Builder()
    x = b.given(torch.randn(2, 3, 64))
    views = [b.call(aten.view.default, x, [6, 64]) for _ in range(3)]
    made = [
        v for view in views for v in b.items(b.call(cast.dynamic_quantize_asymmetric.default, view, [-1]))
    ]
    flat = b.call(aten.view.default, x, [6, 64])
    scale, offset = b.constant(torch.tensor([0.25])), b.constant(torch.tensor([3]))
    made += [b.call(cast.quantize.default, flat, scale, offset) for _ in range(2)]
    made += b.items(b.call(cast.dynamic_quantize_mxfp4.default, flat, 32))
    module = b.done(*made)
    before = fx_graphs.run(module, b.examples)
    log = Log()
    after = lift_combine(module, log=log, check=True)
    assert after is module
    fx_graphs.assert_equal(before, fx_graphs.run(after, b.examples))
    calls = {n.target: n for n in after.graph.nodes if n.target in _CAST}
    assert sum(n.target in _CAST for n in after.graph.nodes) == len(calls) == 3
    assert all(n.args[0].op == "placeholder" for n in calls.values())
    assert not any("blockscale" in name for name in targets(after))
    assert log.count("cse") + log.count("lift") >= 5


_CAST = (
    cast.dynamic_quantize_asymmetric.default, cast.quantize.default, cast.dynamic_quantize_mxfp4.default,
)  # fmt: skip


def test_two_dtypes_of_codes_are_two() -> None:
    b = fx_graphs.Builder()
    x = b.given(torch.randn(4, 64))
    scale = b.constant(torch.tensor([0.25]))
    made = [b.call(cast.quantize.default, x, scale, None, out_dtype=d) for d in (torch.int8, torch.uint8)]
    proof = proven(b.done(*made), b.examples, stages=LIFT)
    assert len(proof.nodes("quantize")) == 2


def test_arguments_of_the_operator_are_kept() -> None:
    b = fx_graphs.Builder()
    x = b.given(torch.randn(2, 3, 64))
    view = b.call(aten.view.default, x, [6, 64])
    call = (cast.dynamic_quantize_symmetric.default, view, [-1])
    made = b.items(b.call(*call, scale_dtype=torch.float32, out_dtype=torch.int16))
    proof = proven(b.done(*made), b.examples, stages=LIFT)
    (node,) = [n for n in proof.after.graph.nodes if n.target is cast.dynamic_quantize_symmetric.default]
    assert node.kwargs == {"scale_dtype": torch.float32, "out_dtype": torch.int16}
    assert quant_of(proof.the("quantize")).numbers.element == "int16"


def test_a_quantizer_of_ours_with_a_seed_keeps_it() -> None:
    b = fx_graphs.Builder()
    x = b.input(2, 3, 64)
    view = b.call(aten.view.default, x, [6, 64])
    y = b.call(ours.fake_quantize.default, view, *b.place(view, "mxfp4"), gradient="straight", seed=7)
    proof = proven(b.done(y), b.examples, stages=LIFT)
    (node,) = [n for n in proof.after.graph.nodes if n.target is ours.fake_quantize.default]
    assert node.kwargs["seed"] == 7 and node.args[0].op == "placeholder"


@pytest.mark.parametrize("opset", [13, 14])
def test_relu_of_int8_is_of_opset_14(opset: int) -> None:
    """Before, what goes below the quantize is written as a Clip."""
    b = onnx_graphs.Builder(opset)
    y = b.call("Relu", b.input(4, 8))
    scale = b.constant(np.full((1, 1), 0.25, np.float32))
    q = b.quantize(y, "int8,dynamic=false", None, scale)
    proof = proven(b.done(b.dequantize([q, scale], y, "int8,dynamic=false")), b.examples, stages=LIFT)
    assert is_input(proof.the("quantize").operand(0))
