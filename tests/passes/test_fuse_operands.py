"""Operators with quantized operands and results become one, for every row of the table and every family."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx

from blockscale.graph.fused import ROWS, row_named
from blockscale.graph.torch_names import overload_named
from blockscale.passes.pipeline import OPTIMIZE
from passes.fx_graphs import Builder, aten
from passes.proof import Proof, proven
from runtime.fused_cases import CASES, Case

STAGES = ("canonicalize", "cse", "fold", "fuse_operands", "cse")
FAMILIES = (
    "mxfp4", "int8-token", "mxint8", "nvfp4", "uint8", "mxfp6", "int4-g8", "fp8_e4m3", "uint4-token",
    "mxfp8_e5m2", "int8-channel,dynamic=false", "mxfp6_e3m2-g16", "uint8,dynamic=false", "int8-g24,scale=bf16",
)  # fmt: skip
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def quantized(b: Builder, x: fx.Node, name: str) -> fx.Node:
    """Fake-quantized; with parameters of its own where they are static."""
    if "dynamic=false" not in name:
        return b.fake(x, name)
    _, block = b.place(x, name)
    shape = [1 if n == 0 else -(-size // n) for n, size in zip(block, x.meta["val"].shape, strict=True)]
    given: list[Any] = [b.constant(torch.rand(shape) * 0.1 + 0.01)]
    if name.startswith("u"):
        given.append(b.constant(torch.randint(100, 150, shape, dtype=torch.int32)))
    return b.fake(x, name, None, *given)


def graph_of(case: Case, turn: int, dtype: torch.dtype) -> tuple[Builder, fx.GraphModule]:
    """The operator of ATen with operands as floats, dequantized, and measured for it alone; weights constant."""
    row, b = row_named(case.name), Builder()
    torch.manual_seed(turn)
    operands: dict[str, Any] = {}
    for i, (one, x) in enumerate(zip(row.operands, case.operands(dtype), strict=True)):
        if x is None:
            continue
        node = b.given(x) if i == 0 and one.name != "weight" else b.constant(x)
        if (turn + i) % 4 != 3:
            node = quantized(b, node, FAMILIES[(5 * turn + 3 * i) % len(FAMILIES)])
        operands[one.aten] = node
    rest = {k: b.constant(v) if isinstance(v, torch.Tensor) else v for k, v in case.rest.items()}
    target = overload_named(row.aten)
    names = [a.name for a in target._schema.arguments]
    given = operands | {k: v for k, v in rest.items() if k in names}
    args = []
    for argument in target._schema.arguments:
        if argument.name not in given or argument.kwarg_only:
            break
        args.append(given.pop(argument.name))
    result = b.call(target, *args, **given)
    name = FAMILIES[(3 * turn + 1) % len(FAMILIES)]
    results = [quantized(b, result, name)] if turn % 3 != 2 else [result]
    return b, b.done(*results)


def by_hand(case: Case) -> bool:
    """Others are for other passes; sums with a factor are no `add` of the view."""
    return "_norm" not in case.name and case.name != "requantize" and "alpha" not in case.rest


@pytest.mark.parametrize("case", [case for case in CASES if by_hand(case)], ids=lambda case: case.name)
def test_every_row(case: Case) -> None:
    for turn in range(6 if case.name in ("linear", "mul", "conv2d") else 4):
        b, module = graph_of(case, turn, DTYPES[turn % 3])
        proof = proven(module, b.examples, stages=STAGES, more=True)
        first = not (turn % 4 == 3 and turn % 3 == 2)
        kind = row_named(case.name).kind
        assert proof.kinds[kind] == first, f"{turn} {proof.log}"
        if turn % 3 != 2:
            assert proof.the(kind).params["out"] is not None and proof.kinds["quantize"] <= turn % 4


def test_no_row_is_forgotten() -> None:
    left = {row.name for row in ROWS} - {case.name for case in CASES if by_hand(case)}
    assert all("_norm" in name or name in ("requantize", "baddbmm") for name in left)


def test_a_sum_with_a_factor_is_left_with_the_reason() -> None:
    b = Builder()
    x = b.fake(b.input(3, 64), "mxfp8")
    proof = done(b, b.call(aten.add.Tensor, x, x, alpha=2))
    assert proof.kinds["fused.add"] == 0 and "alpha is not 1" in proof.reasons("fuse_operands")


# ------------------------------------------------------------------------------------------ single laws


def linear_after(b: Builder, x: fx.Node, rows: int = 8, layout: str = "mxfp4") -> fx.Node:
    columns = x.meta["val"].shape[-1]
    weight = b.fake(b.constant(torch.randn(rows, columns).to(x.meta["val"].dtype)), layout)
    return b.call(aten.linear.default, x, weight)


def done(b: Builder, *results: Any) -> Proof:
    return proven(b.done(*results), b.examples, stages=STAGES)


def test_weights_are_codes_and_nothing_else_is_left() -> None:
    b = Builder()
    proof = done(b, linear_after(b, b.fake(b.input(3, 64), "mxfp8")))
    assert dict(proof.kinds) == {"fused.linear": 1}
    x, weight, bias = proof.the("fused.linear").operands[:3]
    assert bias is None and weight is not None and weight.const is not None and x is not None
    ports = proof.the("fused.linear").params["ports"]
    assert ports[0] is not None and ports[1] is not None
    assert proof.the("fused.linear").operand(3) is None  # no scale: x is measured inside


def test_a_quantize_of_several_users_stays_one() -> None:
    b = Builder()
    x = b.fake(b.input(3, 64), "mxfp8")
    proof = done(b, linear_after(b, x), linear_after(b, x))
    assert "stands alone: %x1 is an input" in proof.reasons("fuse_operands")
    assert proof.kinds["quantize"] == 1 and proof.kinds["fused.linear"] == 2
    assert proof.kinds["dequantize"] == 0


def test_a_float_user_keeps_the_dequantize() -> None:
    """Error 9 of the contract of motion."""
    b = Builder()
    x = b.fake(b.input(3, 64), "mxfp8")
    proof = done(b, linear_after(b, x), b.call(aten.exp.default, x))
    assert proof.kinds["dequantize"] == 1 and proof.kinds["fused.linear"] == 1
    assert "aten.exp.default has no fused operator" in proof.reasons("fuse_operands")


def test_a_result_that_is_used_as_floats_is_not_quantized_in_place() -> None:
    b = Builder()
    y = linear_after(b, b.input(3, 64))
    proof = done(b, linear_after(b, b.fake(y, "int8-token")), y)
    assert proof.kinds["fused.linear"] == 2 and proof.nodes("fused.linear")[0].params["out"] is None
    assert "used as floats too" in proof.reasons("fuse_operands")


def test_a_result_with_two_quantizes_keeps_both() -> None:
    b = Builder()
    y = linear_after(b, b.input(3, 64))
    given = [b.fake(y, "int8-token"), b.fake(y, "mxint8-g8")]
    proof = done(b, *(one for x in given for one in (linear_after(b, x), x)))
    assert proof.kinds["quantize"] == 2 and "2 different quantizes" in proof.reasons("fuse_operands")


def test_a_chain_hands_codes_on() -> None:
    b = Builder()
    x = b.input(3, 64)
    gate, up = linear_after(b, x, 32), linear_after(b, x, 32)
    product = b.fake(b.call(aten.mul.Tensor, b.call(aten.silu.default, gate), up), "mxfp8")
    proof = done(b, linear_after(b, product), linear_after(b, product))
    assert proof.kinds["quantize"] == 0 and proof.kinds["fused.mul"] == 1
    assert proof.kinds["silu"] == 1  # floats in, floats out: nothing to fuse


def test_two_dtypes_are_left() -> None:
    b = Builder()
    x, y = b.fake(b.input(3, 64, dtype=torch.bfloat16), "mxfp8"), b.input(3, 64)
    proof = done(b, b.call(aten.mul.Tensor, x, y))
    assert proof.kinds["fused.mul"] == 0 and "one float dtype" in proof.reasons("fuse_operands")


def test_arguments_that_the_row_does_not_have_are_left() -> None:
    b = Builder()
    x = b.fake(b.input(3, 64, dtype=torch.bfloat16), "mxfp8")
    proof = done(b, b.call(aten.softmax.int, x, -1, torch.bfloat16))
    assert proof.kinds["softmax"] == 1 and "softmax.int with dtype" in proof.reasons("fuse_operands")


def test_one_that_is_read_twice_by_one_operator() -> None:
    b = Builder()
    x = b.fake(b.input(3, 64), "int8-token")
    proof = done(b, b.call(aten.mul.Tensor, x, x))
    assert proof.kinds["fused.mul"] == 1 and proof.kinds["quantize"] == 1


def test_a_dialect_without_codes_is_measured_inside() -> None:
    b = Builder()
    x = b.fake(b.input(3, 64), "mxfp4,dialect=quark")
    proof = done(b, linear_after(b, x))
    assert proof.kinds["fake_quantize"] == 0
    assert proof.the("fused.linear").params["ports"][0].numbers.dialect == "quark"


def test_stochastic_rounding_stays() -> None:
    b = Builder()
    x = b.fake(b.input(3, 64), "mxfp8,rounding=stochastic")
    proof = done(b, linear_after(b, x))
    assert proof.kinds["quantize"] == 1 and proof.kinds["fused.linear"] == 1


def test_symbolic_shapes() -> None:
    b = Builder()
    x = b.fake(b.input(3, 5, 64, dynamic=(0, 1)), "mxfp8")
    y = b.fake(b.call(aten.relu.default, linear_after(b, x, 64)), "int8-token")
    proof = proven(b.done(linear_after(b, y)), b.examples, stages=STAGES)
    assert proof.kinds["fused.linear"] == 2 and proof.kinds["fused.relu"] == 1


def test_what_is_written_to_stays() -> None:
    b = Builder()
    x = b.input(3, 64)
    y = linear_after(b, x)
    q = b.fake(y, "mxint8-g8")
    b.call(aten.add_.Tensor, y, 1.0)
    proof = done(b, q, y)
    assert proof.kinds["fused.linear"] == 0 and proof.kinds["linear"] == 1
    assert "shares memory" in proof.reasons("canonicalize")


def test_foreign_quantizers_stay() -> None:
    b = Builder()
    x = b.input(3, 64)
    scale, zero = b.constant(torch.tensor(0.1)), b.constant(torch.tensor(3))
    y = b.call(aten.fake_quantize_per_tensor_affine.tensor_qparams, x, scale, zero, -128, 127)
    proof = proven(b.done(linear_after(b, y)), b.examples, stages=("fuse_operands",))
    x_port, weight_port, _ = proof.the("fused.linear").params["ports"]
    assert x_port is None and weight_port is not None
    assert "its scale is given" in proof.reasons("fuse_operands")


def test_fused_again_is_the_same() -> None:
    b = Builder()
    x = b.fake(b.input(3, 64), "mxfp8")
    proof = done(b, linear_after(b, linear_after(b, x)))
    again = proven(proof.after, b.examples, stages=STAGES, more=True)
    assert again.kinds == proof.kinds


@pytest.mark.parametrize("layout", ["mxfp8", "mxfp4", "nvfp4", "int8-token", "uint8-token", "int4-g16"])
@pytest.mark.parametrize("dynamic", [(), (0, 1)])
def test_one_that_was_lifted_over_a_view_for_nothing(layout: str, dynamic: tuple[int, ...]) -> None:
    """It met no equal: the product that alone reads it measures it, after the view."""
    b = Builder()
    x = b.call(aten.exp.default, b.input(2, 3, 64, dynamic=dynamic))
    sizes = b.sizes(x)
    flat = b.call(aten.expand.default, b.call(aten.view.default, x, [-1, sizes[2]]), [-1, 64])
    weight = b.fake(b.constant(torch.randn(64, 8)), "mxfp8", [32, 1])
    module = b.done(b.call(aten.mm.default, b.fake(flat, layout), weight))
    proof = proven(module, b.examples, stages=OPTIMIZE)
    assert proof.kinds["quantize"] == proof.kinds["dequantize"] == 0 and proof.kinds["fused.mm"] == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["mxfp4", "int8-channel", "int4-g32"])
def test_a_product_with_a_transposed_matrix_is_a_linear_layer(layout: str, dtype: torch.dtype) -> None:
    """As decompositions write it. Codes of 4 bits share bytes: they cannot be transposed."""
    for name in ("mm", "addmm", "t"):
        b = Builder()
        x, w = b.fake(b.input(5, 96, dtype=dtype), "mxfp8"), b.constant(torch.randn(40, 96).to(dtype))
        weight = b.fake(w, layout)
        turned = (
            b.call(aten.t.default, weight) if name == "t" else b.call(aten.permute.default, weight, [1, 0])
        )
        bias = [b.constant(torch.randn(40).to(dtype))] if name == "addmm" else []
        y = b.call(aten.addmm.default if bias else aten.mm.default, *bias, x, turned)
        proof = proven(b.done(y), b.examples, stages=STAGES)
        assert dict(proof.kinds) == {"fused.linear": 1}


def test_a_matrix_that_broadcasts_is_no_bias() -> None:
    b = Builder()
    x, bias, w = b.input(5, 64), b.input(5, 8), b.fake(b.constant(torch.randn(8, 64)), "mxfp4")
    turned = b.call(aten.t.default, w)
    proof = proven(b.done(b.call(aten.addmm.default, bias, x, turned)), b.examples, stages=STAGES)
    assert proof.kinds["fused.linear"] == 0 and proof.kinds["dequantize"] == 1


@pytest.mark.parametrize("layout", ["mxfp8", "mxfp4", "int8-token", "uint8-token"])
@pytest.mark.parametrize("dynamic", [(), (0, 1)])
def test_one_that_was_lifted_over_a_permute_for_nothing(layout: str, dynamic: tuple[int, ...]) -> None:
    b = Builder()
    x = b.call(aten.exp.default, b.input(2, 3, 64, dynamic=dynamic))
    flat = b.call(aten.reshape.default, b.call(aten.permute.default, x, [1, 0, 2]), [-1, 64])
    weight = b.fake(b.constant(torch.randn(64, 8)), "mxfp8", [32, 1])
    module = b.done(b.call(aten.mm.default, b.fake(flat, layout), weight))
    proof = proven(module, b.examples, stages=OPTIMIZE)
    assert proof.kinds["quantize"] == proof.kinds["dequantize"] == 0 and proof.kinds["fused.mm"] == 1


@pytest.mark.parametrize("which", ["codes", "scale", "view"])
def test_codes_that_somebody_else_reads_are_not_measured_inside(which: str) -> None:
    b = Builder()
    x = b.call(aten.exp.default, b.input(2, 3, 64))
    q = b.measure(x, "mxfp8")
    y = linear_after(b, b.dequantize(q, x, "mxfp8"))
    other = b.call(aten.view.default, q[0], [6, 64]) if which == "view" else q[which == "scale"]
    proof = proven(b.done(y, other), b.examples, stages=STAGES)
    assert proof.kinds["quantize"] == 1 and proof.kinds["fused.linear"] == 1


def test_scales_that_go_another_way_than_codes_are_not_measured_inside() -> None:
    """The scales of rows 0 and 1 change places, the codes do not."""
    b = Builder()
    x = b.call(aten.exp.default, b.input(2, 2, 64))
    codes, scale, zero, t = b.measure(x, "int8-token")
    turned = b.call(aten.permute.default, scale, [1, 0, 2])
    kept = [b.call(aten.view.default, codes, [4, 64]), b.call(aten.reshape.default, turned, [4, 1]), zero, t]
    flat = b.call(aten.view.default, x, [4, 64])
    proof = proven(b.done(linear_after(b, b.dequantize(kept, flat, "int8-token"))), b.examples, stages=STAGES)
    assert proof.kinds["quantize"] == 1 and proof.kinds["fused.linear"] == 1


def test_outputs_that_nobody_uses_are_not_written() -> None:
    """The zero points and tensor scales of dynamic results, the deviation of a norm, the sum of a residual."""
    b = Builder()
    total = b.call(aten.add.Tensor, b.input(3, 64), b.input(3, 64))
    w = b.constant(torch.randn(64))
    y = b.items(b.call(aten.native_layer_norm.default, total, [64], w, w, 1e-6))[0]
    x = b.fake(y, "mxfp8")
    after = proven(b.done(linear_after(b, x), linear_after(b, x)), b.examples, stages=OPTIMIZE).after
    items = [node for node in after.graph.nodes if node.target is operator.getitem]
    assert [node.args[1] for node in items] == [0, 1] and all(node.users for node in items)
