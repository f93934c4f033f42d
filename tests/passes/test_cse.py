"""Combine: equal nodes become one, and only those."""

from __future__ import annotations

import operator

import pytest
import torch

from blockscale.passes import cse
from passes.fx_graphs import Builder, assert_proven, aten, count, example, optimize, ours


def test_equal_quantizes_are_one() -> None:
    b = Builder()
    x = b.input(4, 8)
    first, second = b.fake(x, "mxfp4-g4"), b.fake(x, "mxfp4-g4")
    log, after = assert_proven(b.done(first, second), b.examples, stages=[cse.run])
    assert count(after, "fake_quantize") == 1
    assert log.count("cse") == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("mxfp4-g4", "mxfp4-g4,rule=ceil"),
        ("mxfp4-g4", "mxfp4-g4,rounding=half_away"),
        ("mxfp4-g4", "mxfp4-g4,dialect=torchao"),
        ("mxfp4-g4", "mxfp4-g2"),
        ("mxfp4-g4", "nvfp4-g4"),
        ("int8-token", "int8"),
        ("int8-token", "int8-token,quant_min=-127"),
        ("int8-token", "int8-token,rule=no_clip,quant_min=-127"),
        ("int8-token", "int8-token,scale=bf16"),
        ("uint8-token", "uint8-token,rule=symmetric"),
        ("mxfp8_e4m3-g4", "mxfp8_e5m2-g4"),
    ],
)
def test_quantizes_that_differ_in_a_field_stay_two(one: str, other: str) -> None:
    b = Builder()
    x = b.input(4, 8)
    _, after = assert_proven(b.done(b.fake(x, one), b.fake(x, other)), b.examples)
    assert count(after, "fake_quantize") == 2


def test_two_buffers_with_equal_contents_are_one_value() -> None:
    b = Builder()
    x = b.input(4, 8)
    scales = [b.constant(torch.full((1, 1), value)) for value in (0.5, 0.5, 0.25)]
    made = [b.quantize(x, "int8,dynamic=false", None, scale) for scale in scales]
    _, after = assert_proven(b.done(*made), b.examples)
    assert count(after, "quantize") == 2


def test_equal_bits_of_another_dtype_or_shape_are_another_value() -> None:
    b = Builder()
    made = [b.constant(torch.zeros(4, dtype=dtype)) for dtype in (torch.float32, torch.int32)]
    made += [b.constant(torch.zeros(2, 2))]
    results = [b.call(aten.reshape.default, one, [4, 1]) for one in made]
    _, after = assert_proven(b.done(*results), b.examples or [], stages=[cse.run])
    assert count(after, "reshape") == 3


def test_spellings_of_one_move_are_one() -> None:
    b = Builder()
    x = b.input(4, 8)
    made = [
        b.call(aten.transpose.int, x, 0, 1), b.call(aten.transpose.int, x, -1, -2),
        b.call(aten.permute.default, x, [1, 0]), b.call(aten.t.default, x),
        b.call(aten.permute.default, x, [-1, 0]),
    ]  # fmt: skip
    _, after = assert_proven(b.done(*made), b.examples, stages=[cse.run])
    assert len(after.graph.nodes) == 3


def test_arguments_that_compare_equal_in_python_are_not_one() -> None:
    b = Builder()
    x = b.input(4, 8)
    made = [b.call(aten.add.Tensor, x, 1, alpha=a) for a in (1, 1.0)]
    made += [b.call(aten.mul.Tensor, x, z) for z in (0.0, -0.0)]
    _, after = assert_proven(b.done(*made), b.examples, stages=[cse.run])
    assert (count(after, "add"), count(after, "mul")) == (2, 2)


def test_random_operators_are_never_combined() -> None:
    b = Builder()
    x = b.input(4, 8)
    made = [b.call(aten.rand_like.default, x) for _ in range(2)]
    numbers = "mxfp4-g4,rounding=stochastic"
    made += [b.fake(x, numbers), b.fake(x, numbers)]
    graph = b.done(*made)
    optimize(graph)
    assert count(graph, "rand_like") == count(graph, "fake_quantize") == 2


def test_what_is_written_to_in_between_is_never_combined() -> None:
    b = Builder()
    x = b.input(4, 8)
    view = b.call(aten.view.default, x, [32])
    before = b.fake(view, "mxfp4-g4")
    b.call(aten.add_.Tensor, b.call(aten.select.int, x, 0, 1), 3)
    after_write = b.fake(b.call(aten.view.default, x, [32]), "mxfp4-g4")
    _, after = assert_proven(b.done(before, after_write), b.examples)
    assert count(after, "fake_quantize") == 2


def test_a_result_that_is_written_to_is_not_shared() -> None:
    b = Builder()
    x = b.input(4, 8)
    kept, written = b.fake(x, "mxfp4-g4"), b.fake(x, "mxfp4-g4")
    b.call(aten.mul_.Tensor, written, 2)
    _, after = assert_proven(b.done(kept, written), b.examples)
    assert count(after, "fake_quantize") == 2


def test_equal_size_computations_are_one() -> None:
    b = Builder()
    x = b.input(4, 8, dynamic=[0])
    made = []
    for _ in range(2):
        n = b.call(operator.mul, b.size(x, 0), 8)
        made.append(b.fake(b.call(aten.view.default, x, [n]), "mxfp4-g4"))
    _, after = assert_proven(b.done(*made), b.examples, [example((7, 8))])
    assert count(after, "fake_quantize") == 1


def test_a_view_does_not_break_when_its_operand_gets_other_strides() -> None:
    """A copy in order has equal values, and a slice of it can be viewed flat; one of the original cannot."""
    b = Builder()
    x = b.input(2, 3, 4)
    turned = b.call(aten.permute.default, x, [2, 0, 1])
    ordered = b.call(aten.contiguous.default, turned)
    first = b.call(aten.slice.Tensor, turned, 0, 0, 2)
    second = b.call(aten.slice.Tensor, ordered, 0, 0, 2)
    flat = b.call(aten.view.default, second, [12])
    deeper = b.call(aten.view.default, b.call(aten.unsqueeze.default, second, 0), [6, 2])
    _, after = assert_proven(b.done(first, flat, deeper), b.examples, stages=[cse.run])
    assert count(after, "slice") == 1


def test_a_large_constant_is_compared_by_name() -> None:
    b = Builder()
    x = b.input(1, 1 << 17)
    large = [b.constant(torch.ones(1, 1 << 17)) for _ in range(2)]
    made = [b.call(aten.add.Tensor, x, one) for one in large]
    _, after = assert_proven(b.done(*made), b.examples, stages=[cse.run])
    assert count(after, "add") == 2


def test_unequal_zero_points_stay_two() -> None:
    b = Builder()
    x = b.input(4, 8)
    scale = b.constant(torch.full((1, 1), 0.5))
    zeros = [b.constant(torch.full((1, 1), z, dtype=torch.int32)) for z in (3, 3, 4)]
    made = [b.quantize(x, "uint8,dynamic=false", None, scale, zero) for zero in zeros]
    _, after = assert_proven(b.done(*made), b.examples)
    assert count(after, "quantize") == 2


def test_equal_dequantizes_of_other_dtypes_stay_two() -> None:
    b = Builder()
    x = b.input(4, 8)
    half = b.call(aten.to.dtype, x, torch.float16)
    q = b.measure(x, "mxfp4-g4")
    made = [b.dequantize(q, like, "mxfp4-g4") for like in (x, half, x)]
    _, after = assert_proven(b.done(*made), b.examples)
    assert count(after, "dequantize") == 2
    assert ours.dequantize.default in {n.target for n in after.graph.nodes}
