"""Sink: when a dequantize that may go down does, and what the log says where it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import Cat, Expand, Move, Permute, Reshape, Slice, Split
from blockscale.numerics.scheme import numbers_named
from blockscale.passes import sink
from passes import fx_graphs, onnx_graphs
from passes.fx_graphs import aten, example
from passes.moving_graphs import quantizer
from passes.proof import Proof, proven, shape

SINK = ("sink",)
both = pytest.mark.parametrize("builder", [fx_graphs.Builder, onnx_graphs.Builder], ids=["fx", "onnx"])
SCHEMES = [
    ("int8-token", (1, 0)),
    ("uint8-token", (1, 0)),
    ("int8", (0, 0)),
    ("mxfp8", (1, 32)),
    ("mxint8", (1, 32)),
]
schemes = pytest.mark.parametrize(("scheme", "block"), SCHEMES)


def pair(b: Any, x: Any, scheme: str, block: Any) -> Any:
    """x quantized and dequantized."""
    layout = Layout(numbers_named(scheme.partition("-")[0]), fixed(b.sizes(x)), block)
    return b.dequantize(quantizer(b, x, layout), x, scheme, block)


def fixed(sizes: Any) -> tuple[int, ...]:
    return tuple(n if isinstance(n, int) else 7 for n in sizes)


def linear(b: Any, x: Any, weight: torch.Tensor) -> Any:
    if isinstance(b, onnx_graphs.Builder):
        return b.call("MatMul", x, b.constant(weight.T.numpy().copy()))
    return b.call(aten.linear.default, x, b.constant(weight))


def ends(proof: Proof) -> set[str]:
    """What reads the dequantizes."""
    return {user.kind for node in proof.nodes("dequantize") for user in node.outputs[0].users}


@both
@schemes
@pytest.mark.parametrize("move", [Permute((1, 0)), Reshape((2, 4, 64))], ids=lambda m: type(m).__name__)
def test_below_what_only_puts_elements_elsewhere(builder: Any, move: Move, scheme: str, block: Any) -> None:
    b = builder()
    y = b.move(pair(b, b.input(8, 64), scheme, block), move)
    proof = proven(b.done(y), b.examples, stages=SINK)
    assert ends(proof) == {"output"}


@both
@schemes
def test_a_slice_is_legal_for_codes_also_of_dynamic_quantizers(builder: Any, scheme: str, block: Any) -> None:
    b = builder()
    y = b.move(pair(b, b.input(8, 64), scheme, block), Slice(0, 2, 5))
    proof = proven(b.done(y), b.examples, stages=SINK)
    assert shape(proof.the("dequantize").outputs[0]) == (3, 64)


@both
@pytest.mark.parametrize("scheme", ["mxfp4", "nvfp4", "mxfp6"])
def test_rows_of_codes_that_share_bytes_move_whole(builder: Any, scheme: str) -> None:
    b = builder()
    block = (1, 1, 16 if scheme == "nvfp4" else 32)
    y = pair(b, b.input(2, 4, 64), scheme, block)
    proof = proven(b.done(b.move(y, Permute((1, 0, 2)))), b.examples, stages=SINK)
    assert ends(proof) == {"output"}


@both
def test_below_all_users_or_none(builder: Any) -> None:
    b = builder()
    x = b.input(8, 64)
    y = pair(b, x, "mxfp4", (1, 32))
    made = [b.move(y, Reshape((2, 4, 64))), b.move(y, Reshape((8, 4, 16)))]
    proof = proven(b.done(*made), b.examples, stages=SINK)
    assert ends(proof) == {"reshape"}
    assert "not sunk below" in proof.reasons("sink")


@both
def test_a_float_user_keeps_it_where_it_is(builder: Any) -> None:
    b = builder()
    y = pair(b, b.input(8, 64), "mxfp4", (1, 32))
    proof = proven(b.done(y, b.move(y, Permute((1, 0)))), b.examples, stages=SINK)
    assert len(proof.nodes("dequantize")) == 1


@both
def test_parts_of_a_split_that_are_used(builder: Any) -> None:
    b = builder()
    y = pair(b, b.input(8, 96), "mxfp4", (1, 32))
    parts = b.move(y, Split(1, (32, 64)))
    proof = proven(b.done(parts[1]), b.examples, stages=SINK)
    assert shape(proof.the("dequantize").outputs[0]) == (8, 64)


@both
def test_repeats_are_decoded_before_they_are_made(builder: Any) -> None:
    b = builder()
    y = b.move(pair(b, b.input(1, 64), "mxfp4", (1, 32)), Expand((8, 64)))
    proof = proven(b.done(y), b.examples, stages=SINK)
    assert shape(proof.the("dequantize").outputs[0]) == (1, 64)
    assert "512 elements would be decoded in place of 64" in proof.reasons("sink")


@both
def test_unless_a_product_takes_the_codes(builder: Any) -> None:
    b = builder()
    y = b.move(pair(b, b.input(1, 64), "mxfp4", (1, 32)), Expand((8, 64)))
    proof = proven(b.done(linear(b, y, torch.ones(4, 64))), stages=SINK)
    assert len(ends(proof)) == 1 and ends(proof) <= {"linear", "matmul"}


@both
@pytest.mark.parametrize("scheme", ["int8-token", "mxfp4", "int8"])
def test_a_cat_of_dequantized_parts(builder: Any, scheme: str) -> None:
    b = builder()
    block = {"int8-token": (1, 0), "mxfp4": (1, 32), "int8": (0, 0)}[scheme]
    parts = [pair(b, b.input(n, 64), scheme, block) for n in (2, 4)]
    proof = proven(b.done(b.move(parts, Cat(0))), b.examples, stages=SINK)
    if scheme == "int8":  # each part has a scale of its own
        assert len(proof.nodes("dequantize")) == 2
        assert "its parts have other scales" in proof.reasons("sink")
    else:
        assert shape(proof.the("dequantize").outputs[0]) == (6, 64)


@both
def test_a_cat_of_which_one_part_is_floats(builder: Any) -> None:
    b = builder()
    parts = [pair(b, b.input(2, 64), "mxfp4", (1, 32)), b.input(4, 64)]
    proof = proven(b.done(b.move(parts, Cat(0))), b.examples, stages=SINK)
    assert ends(proof) == {"cat"}
    assert "is not dequantized" in proof.reasons("sink")


@both
def test_a_cat_of_codes_of_other_formats(builder: Any) -> None:
    b = builder()
    parts = [pair(b, b.input(2, 64), scheme, (1, 32)) for scheme in ("mxfp8_e4m3", "mxfp8_e5m2")]
    proof = proven(b.done(b.move(parts, Cat(0))), b.examples, stages=SINK)
    assert ends(proof) == {"cat"}


@both
def test_one_part_twice(builder: Any) -> None:
    b = builder()
    part = pair(b, b.input(2, 64), "mxfp4", (1, 32))
    proof = proven(b.done(b.move([part, part], Cat(0))), b.examples, stages=SINK)
    assert len(proof.nodes("dequantize")) == 1


@both
def test_moves_of_weights_to_the_product(builder: Any) -> None:
    """A weight [in, out] in blocks along `in` reaches the product through its transpose."""
    b = builder()
    x = b.input(4, 64)
    weight = b.constant(
        example((64, 32), 3).nan_to_num(0, 1, -1) if builder is fx_graphs.Builder else _weight()
    )
    y = b.move(pair(b, weight, "mxfp8", (32, 1)), Permute((1, 0)))
    product = b.call("MatMul", x, b.move(y, Permute((1, 0)))) if builder is onnx_graphs.Builder else None
    out = product if product is not None else b.call(aten.linear.default, x, y)
    proof = proven(b.done(out), stages=SINK)
    assert len(ends(proof)) == 1 and ends(proof) <= {"linear", "matmul"}


def _weight() -> Any:
    return np.nan_to_num(onnx_graphs.example((64, 32), 3), nan=0, posinf=1, neginf=-1)


def test_an_unknown_operator_stays_and_the_log_says_so() -> None:
    b = fx_graphs.Builder()
    y = b.call(aten.rot90.default, pair(b, b.input(4, 64), "mxfp4", (1, 32)), 1, [0, 1])
    proof = proven(b.done(y), b.examples, stages=SINK)
    assert "(aten.rot90.default): it is not known" in proof.reasons("sink")


@pytest.mark.parametrize("written", ["codes", "values", "view"])
def test_what_is_written_to_stays(written: str) -> None:
    b = fx_graphs.Builder()
    x = b.input(4, 64)
    q = b.measure(x, "mxfp8")
    y = b.dequantize(q[:2], x, "mxfp8")
    view = b.call(aten.view.default, y, [2, 2, 64])
    if written == "codes":
        b.call(aten.zero_.default, q[0])
    else:
        b.call(aten.mul_.Tensor, y if written == "values" else view, 2)
    proof = proven(b.done(view, y if written != "codes" else view), b.examples, stages=SINK)
    assert len(proof.nodes("dequantize")) == 1
    assert ends(proof) <= {"reshape", "raw", "output"}


def test_symbolic_sizes() -> None:
    b = fx_graphs.Builder()
    x = b.input(2, 3, 64, dynamic=[0, 1])
    y = pair(b, x, "mxfp4", (1, 1, 32))
    turned = b.call(aten.permute.default, y, [1, 0, 2])
    flat = b.call(aten.reshape.default, turned, [-1, 64])
    proof = proven(b.done(flat), b.examples, [example((5, 1, 64))], [example((1, 7, 64))], stages=SINK)
    assert ends(proof) == {"output"}


def test_a_cat_that_stays_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by each of its parts: what it is made of is gone through for all of them."""
    asked: list[Any] = []
    parts = sink._parts
    monkeypatch.setattr(sink, "_parts", lambda user: asked.append(user) or parts(user))
    b = fx_graphs.Builder()
    x = b.input(4, 64)
    made = [pair(b, x, "mxfp4", (1, 32)) for _ in range(20)]
    proof = proven(b.done(b.call(aten.cat.default, [*made, x])), b.examples, stages=SINK)
    assert len(proof.nodes("dequantize")) == 20 and len(asked) == 1
    assert proof.reasons("sink").count("is not dequantized") == 20


def test_a_cat_of_one_value_again_and_again() -> None:
    b = fx_graphs.Builder()
    y = pair(b, b.input(4, 64), "mxfp4", (1, 32))
    proof = proven(b.done(b.call(aten.cat.default, [y] * 20)), b.examples, stages=SINK)
    assert "5120 elements would be decoded in place of 256" in proof.reasons("sink")
