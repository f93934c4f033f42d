"""Factors into weights: on bits for fuse_scale, within its tolerance for fuse_scale_close."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from blockscale.passes.log import Log
from blockscale.passes.pipeline import optimize
from passes import onnx_graphs
from passes.fx_graphs import Builder, assert_sound, aten, run
from passes.proof import Proof, proven

EXACT, CLOSE = ("fuse_scale",), ("fuse_scale_close",)
GENERATOR = torch.Generator().manual_seed(0)
N, K = 8, 64


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR)


def codes_in(b: Any, *shape: int, scale: float = 0.05, scheme: str = "int8,dynamic=false") -> Any:
    """An input that is decoded from codes with a static scale: its magnitudes are bounded."""
    x, given = b.given(random(*shape) * 2), [b.constant(torch.full((1,) * len(shape), scale))]
    return b.dequantize([b.quantize(x, scheme, None, *given), *given], x, scheme)


def coded(b: Builder, scheme: str, *shape: int, block: list[int] | None = None) -> Any:
    """A weight as constant codes."""
    w = b.constant(random(*shape))
    q = b.measure(w, scheme, block)
    numbers = scheme.partition("-")[0]
    parts = [q[0], q[1], q[2] if numbers.startswith("uint") else None, q[3] if numbers == "nvfp4" else None]
    return b.dequantize(parts, w, scheme, block)


def exact(b: Any, *outputs: Any, stages: tuple[str, ...] = EXACT) -> Proof:
    return proven(b.done(*outputs), b.examples, stages=stages)


def gone(proof: Proof) -> bool:
    return proof.kinds["mul"] + proof.kinds["div"] == 0


def linear(b: Builder, x: Any, w: Any = None, bias: bool = True) -> Any:
    k = x.meta["val"].shape[-1]
    return b.call(aten.linear.default, x, b.constant(random(N, k)) if w is None else w,
                  b.constant(random(N)) if bias else None)  # fmt: skip


SIGNS = torch.where(torch.arange(K) % 3 == 0, -1.0, 1.0)
POWERS = 2.0 ** (torch.arange(K) % 5 - 2)


# -------------------------------------------------------------------------- before a product


@pytest.mark.parametrize("factor", [SIGNS, SIGNS.reshape(1, K), torch.tensor(-1.0), -1.0, 1, torch.ones(K)])
def test_signs_are_exact_whatever_the_input_is(factor: Any) -> None:
    b = Builder()
    x = b.input(4, K)
    y = b.call(aten.mul.Tensor, x, b.constant(factor) if isinstance(factor, Tensor) else factor)
    assert gone(exact(b, linear(b, y)))


@pytest.mark.parametrize("factor", [2.0, torch.tensor(0.25), POWERS, POWERS * SIGNS, POWERS.reshape(1, K)])
def test_powers_of_two_are_exact_on_bounded_inputs(factor: Any) -> None:
    b = Builder()
    x = codes_in(b, 4, K)
    y = b.call(aten.mul.Tensor, x, b.constant(factor) if isinstance(factor, Tensor) else factor)
    assert gone(exact(b, linear(b, y)))


def test_powers_of_two_after_what_selects_and_after_float16() -> None:
    b = Builder()
    x = b.call(aten.transpose.int, b.call(aten.relu.default, codes_in(b, K, 4)), 0, 1)
    y = linear(b, b.call(aten.div.Tensor, x, 8.0))
    assert gone(exact(b, y))
    b = Builder()
    x = b.call(aten.to.dtype, b.input(4, K, dtype=torch.float16), torch.float32)
    assert gone(exact(b, linear(b, b.call(aten.mul.Tensor, x, 0.125))))


@pytest.mark.parametrize(("factor", "scale", "why"), [
    (2.0, None, "may leave the range"), (3.0, 0.05, "no power of two"), (0.5, 2.0**-126, "may leave the range"),
    (2.0, 2.0**120, "may leave the range"), (0.0, 0.05, "no power of two"),
])  # fmt: skip
def test_what_is_not_proven_stays(factor: float, scale: float | None, why: str) -> None:
    b = Builder()
    x = b.input(4, K) if scale is None else codes_in(b, 4, K, scale=scale)
    proof = exact(b, linear(b, b.call(aten.mul.Tensor, x, factor)))
    assert not gone(proof)
    assert why in proof.reasons()


def test_a_weight_whose_product_is_rounded_stays() -> None:
    b = Builder()
    w = b.constant(torch.full((N, K), 2.0**-149))
    proof = exact(b, linear(b, b.call(aten.mul.Tensor, codes_in(b, 4, K), 0.5), w))
    assert "is rounded" in proof.reasons()


def test_bfloat16_takes_signs_alone() -> None:
    for factor, done in ((-1.0, True), (2.0, False)):
        b = Builder()
        x = b.input(4, K, dtype=torch.bfloat16)
        w = b.constant(random(N, K).bfloat16())
        proof = exact(b, b.call(aten.linear.default, b.call(aten.mul.Tensor, x, factor), w))
        assert gone(proof) == done


def test_moves_between() -> None:
    b = Builder()
    x = b.call(aten.mul.Tensor, b.input(4, 2, 32), -1.0)
    assert gone(exact(b, linear(b, b.call(aten.reshape.default, x, [4, 64]))))
    b = Builder()
    x = b.call(aten.mul.Tensor, b.input(2, K, 4), b.constant(SIGNS.reshape(K, 1)))
    assert gone(exact(b, linear(b, b.call(aten.permute.default, x, [0, 2, 1]))))
    b = Builder()
    x = b.call(aten.mul.Tensor, b.input(4, 2, 32), b.constant(SIGNS[:32]))
    proof = exact(b, linear(b, b.call(aten.reshape.default, x, [4, 64])))
    assert "moves its dimension" in proof.reasons()


def test_several_products_share_a_factor() -> None:
    b = Builder()
    y = b.call(aten.mul.Tensor, b.input(4, K), b.constant(SIGNS))
    assert gone(exact(b, linear(b, y), linear(b, y, bias=False)))


def test_other_users_keep_the_factor() -> None:
    b = Builder()
    y = b.call(aten.mul.Tensor, b.input(4, K), -1.0)
    proof = exact(b, linear(b, y), b.call(aten.tanh.default, y))
    assert "uses its result too" in proof.reasons()
    b = Builder()
    x, w = b.input(4, K), b.constant(random(N, K))
    proof = exact(b, linear(b, b.call(aten.mul.Tensor, x, -1.0), w), linear(b, x, w))
    assert "used elsewhere" in proof.reasons()


def test_a_chain_of_factors() -> None:
    b = Builder()
    x = b.call(aten.mul.Tensor, b.input(4, K), -1.0)
    x = b.call(aten.mul.Tensor, x, b.constant(SIGNS))
    assert gone(exact(b, linear(b, x)))


def test_the_factor_of_another_dimension_stays() -> None:
    b = Builder()
    rows = b.constant(torch.tensor([[1.0], [-1.0], [1.0], [-1.0]]))
    proof = exact(b, linear(b, b.call(aten.mul.Tensor, b.input(4, K), rows)))
    assert "another dimension" in proof.reasons()


def test_memory_that_is_written_to_stays() -> None:
    b = Builder()
    x = b.call(aten.relu.default, b.input(4, K))
    y = b.call(aten.mul.Tensor, x, -1.0)
    b.call(aten.add_.Tensor, x, 1.0)
    proof = exact(b, linear(b, y))
    assert "writes to" in proof.reasons()


@pytest.mark.parametrize("view", ["slice", "expand", "split", "raw"])
def test_views_with_gaps_stay(view: str) -> None:
    """A product with a factor is dense, the view is not, and BLAS may then add up in another order."""
    b = Builder()
    x = b.input(4, 2 * K) if view != "expand" else b.input(1, K)
    if view == "slice":
        y = b.call(aten.slice.Tensor, x, 1, 0, 2 * K, 2)
    elif view == "expand":
        y = b.call(aten.expand.default, x, [4, K])
    elif view == "split":
        y = b.items(b.call(aten.split_with_sizes.default, x, [K, K], 1))[1]
    else:
        y = b.call(aten.select.int, b.call(aten.reshape.default, x, [4, 2, K]), 1, 1)
    proof = exact(b, linear(b, b.call(aten.mul.Tensor, y, -1.0)))
    assert "gaps" in proof.reasons()


def test_weights_that_do_not_lie_in_order_stay() -> None:
    b = Builder()
    proof = exact(b, linear(b, b.call(aten.mul.Tensor, b.input(4, K), -1.0), b.constant(random(K, N).t())))
    assert "in order" in proof.reasons()


# -------------------------------------------------------------------------- behind a product


def test_parts_of_a_result_stay() -> None:
    b = Builder()
    y = b.call(aten.slice.Tensor, linear(b, codes_in(b, 4, K)), 1, 0, 4)
    proof = exact(b, b.call(aten.mul.Tensor, y, 2.0))
    assert "gaps" in proof.reasons()


@pytest.mark.parametrize("factor", [2.0, 2.0 ** (torch.arange(N) % 4 - 2.0), torch.tensor([0.125])])
@pytest.mark.parametrize("bias", [True, False])
def test_results_are_scaled_with_their_bias(factor: Any, bias: bool) -> None:
    b = Builder()
    y = linear(b, codes_in(b, 4, K), bias=bias)
    z = b.call(aten.mul.Tensor, y, b.constant(factor) if isinstance(factor, Tensor) else factor)
    assert gone(exact(b, z))


@pytest.mark.parametrize(("factor", "bounded", "why"), [
    (-1.0, True, "-0"), (3.0, True, "no power of two"), (2.0, False, "ends of float32"),
    (2.0**-80, True, "ends of float32"), (2.0**121, True, "ends of float32"),
])  # fmt: skip
def test_results_that_stay(factor: float, bounded: bool, why: str) -> None:
    b = Builder()
    x = codes_in(b, 4, K, scale=2.0**-12) if bounded else b.input(4, K)
    proof = exact(b, b.call(aten.mul.Tensor, linear(b, x), factor))
    assert not gone(proof)
    assert why in proof.reasons()


def test_a_result_that_is_used_stays() -> None:
    b = Builder()
    y = linear(b, codes_in(b, 4, K))
    proof = exact(b, b.call(aten.mul.Tensor, y, 2.0), y)
    assert "used elsewhere" in proof.reasons()


# -------------------------------------------------------------------------- weights and their products


@pytest.mark.parametrize(
    "scheme", ["mxfp4", "mxfp8", "mxint8", "nvfp4", "int8-channel", "uint8-channel", "int4-g32"]
)
def test_quantized_weights_take_the_factor_into_their_scales(scheme: str) -> None:
    b = Builder()
    y = linear(b, b.call(aten.mul.Tensor, codes_in(b, 4, K), 0.25), coded(b, scheme, N, K))
    proof = exact(b, y, stages=("fold", *EXACT))
    assert gone(proof)
    assert proof.kinds["dequantize"] == 2


@pytest.mark.parametrize("transposed", [False, True])
def test_a_factor_for_each_channel_of_codes(transposed: bool) -> None:
    b = Builder()
    factor = 2.0 ** (torch.arange(N) % 3 - 1.0)
    w = coded(b, "int8-channel", N, K)
    x = codes_in(b, 4, K)
    y = b.call(aten.mm.default, x, b.call(aten.t.default, w)) if transposed else linear(b, x, w)
    assert gone(exact(b, b.call(aten.mul.Tensor, y, b.constant(factor)), stages=("fold", *EXACT)))


@pytest.mark.parametrize("scheme", ["int8-channel", "mxfp4", "int8"])
def test_error_12(scheme: str) -> None:
    """A factor [K] against scales of rows or blocks stays where it is."""
    b = Builder()
    y = linear(b, b.call(aten.mul.Tensor, codes_in(b, 4, K), b.constant(POWERS)), coded(b, scheme, N, K))
    assert "differs within blocks" in exact(b, y, stages=("fold", *EXACT)).reasons()


@pytest.mark.parametrize(("scheme", "factor"), [("int8-channel", 0.3), ("mxfp4", 3.0)])
def test_a_weight_times_what_would_be_rounded_stays(scheme: str, factor: float) -> None:
    b = Builder()
    x = b.input(4, K)
    w = b.call(aten.mul.Tensor, coded(b, scheme, N, K), factor)
    proof = exact(b, linear(b, x, w), stages=("fold", *EXACT))
    assert proof.kinds["mul"] == 1
    assert "rounded" in proof.reasons() or "powers of two" in proof.reasons()


@pytest.mark.parametrize("scheme", ["int8-channel", "mxfp4", "fp8_e4m3-channel"])
@pytest.mark.parametrize("factor", [-0.5, 4.0])
def test_a_weight_times_a_power_of_two(scheme: str, factor: float) -> None:
    b = Builder()
    x = b.input(4, K)
    w = b.call(aten.t.default, b.call(aten.mul.Tensor, coded(b, scheme, N, K), factor))
    proof = exact(b, b.call(aten.mm.default, x, w), stages=("fold", *EXACT))
    assert gone(proof) == (scheme != "int8-channel" or factor > 0)  # integers have no -0


# -------------------------------------------------------------------------- other products


def conv(b: Builder, x: Any, groups: int = 1, padding: int = 0) -> Any:
    w = b.constant(random(12, x.meta["val"].shape[1] // groups, 3, 3))
    return b.call(aten.conv2d.default, x, w, b.constant(random(12)), [1, 1], [padding] * 2, [1, 1], groups)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("side", ["before", "behind"])
def test_conv(groups: int, side: str) -> None:
    b = Builder()
    x = codes_in(b, 2, 6, 5, 5)
    if side == "before":
        factor = b.constant((2.0 ** torch.arange(-3.0, 3.0)).reshape(6, 1, 1))
        y = conv(b, b.call(aten.mul.Tensor, x, factor), groups, 1)
    else:
        y = b.call(
            aten.mul.Tensor,
            conv(b, x, groups, 1),
            b.constant(2.0 ** (torch.arange(12) % 3.0).reshape(12, 1, 1)),
        )
    assert gone(exact(b, y))


def test_padding_of_a_conv_has_a_sign() -> None:
    for padding in (0, 1):
        b = Builder()
        proof = exact(b, conv(b, b.call(aten.mul.Tensor, b.input(2, 6, 5, 5), -1.0), 1, padding))
        assert gone(proof) == (padding == 0)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("side", ["before", "behind"])
def test_conv_transpose(groups: int, side: str) -> None:
    b = Builder()
    x = codes_in(b, 2, 6, 5, 5)
    w = b.constant(random(6, 4, 3, 3))
    ins, outs = (2.0 ** (torch.arange(n) % 3.0).reshape(n, 1, 1) for n in (6, 4 * groups))
    if side == "before":
        x = b.call(aten.mul.Tensor, x, b.constant(ins))
    y = b.call(
        aten.conv_transpose2d.input, x, w, b.constant(random(4 * groups)), [2, 2], [0, 0], [0, 0], groups
    )
    if side == "behind":
        y = b.call(aten.mul.Tensor, y, b.constant(outs))
    assert gone(exact(b, y))


@pytest.mark.parametrize("side", ["before", "behind"])
def test_addmm_and_matmul_of_several_dimensions(side: str) -> None:
    factor = 2.0 ** (torch.arange(K) % 3.0)
    for product in ("addmm", "matmul"):
        b = Builder()
        x = codes_in(b, *((4, K) if product == "addmm" else (3, 4, K)))
        if side == "before":
            x = b.call(aten.mul.Tensor, x, b.constant(factor))
        if product == "addmm":
            y = b.call(aten.addmm.default, b.constant(random(N)), x, b.constant(random(K, N)))
        else:
            y = b.call(aten.matmul.default, x, b.constant(random(3, K, N)))
        if side == "behind":
            y = b.call(aten.mul.Tensor, b.constant(factor[:N]), y)
        assert gone(exact(b, y))


def test_two_inputs_have_no_weight() -> None:
    b = Builder()
    x = b.call(aten.mul.Tensor, codes_in(b, 4, K), 2.0)
    proof = exact(b, b.call(aten.mm.default, x, b.given(random(K, N))))
    assert "no constant" in proof.reasons()


def test_sizes_known_only_at_run_time() -> None:
    b = Builder()
    x = b.input(4, K, dynamic=(0,))
    assert gone(exact(b, linear(b, b.call(aten.mul.Tensor, x, b.constant(SIGNS)))))


# -------------------------------------------------------------------------- within the tolerance


def near(build: Callable[[Builder, bool], Any], stages: tuple[str, ...] = CLOSE) -> Log:
    """The results differ by 2^-20 of the sum of magnitudes; `build(b, True)` is that sum."""
    b, sums = Builder(), Builder()
    for one in (b, sums):
        GENERATOR.manual_seed(7)
        one.module = one.done(build(one, one is sums))
    log = Log()
    after = optimize(b.module, stages=stages, log=log, check=True)
    assert_sound(after)
    (before, now), (bound,) = (
        (run(m, b.examples)[0] for m in (b.module, after)),
        run(sums.module, b.examples)[:1],
    )
    assert ((before.double() - now.double()).abs() <= 2.0**-20 * bound.double()).all()
    return log


def product_near(scheme: str, factor: Any, side: str, k: int = K) -> Callable[[Builder, bool], Any]:
    def build(b: Builder, magnitudes: bool) -> Any:
        def size(x: Any) -> Any:
            return b.call(aten.abs.default, x) if magnitudes else x

        x = b.given(random(16, k))
        w = coded(b, scheme, N, k) if scheme else b.constant(random(N, k))
        bias, f = b.constant(random(N)), b.constant(torch.as_tensor(factor))
        x = size(x) if side == "behind" else size(b.call(aten.mul.Tensor, x, f))
        y = b.call(aten.linear.default, x, size(w), size(bias))
        return b.call(aten.mul.Tensor, y, size(f)) if side == "behind" else y

    return build


@pytest.mark.parametrize("scheme", ["", "int8-channel", "uint8-channel", "int4-g32", "nvfp4"])
@pytest.mark.parametrize("factor", [0.3, -1.7, 0.0, 1e-6])
@pytest.mark.parametrize("side", ["before", "behind"])
def test_any_factor_is_close(scheme: str, factor: float, side: str) -> None:
    log = near(product_near(scheme, factor, side), ("fold", *CLOSE))
    refused = "no counterpart" in str(log)
    assert (log.count("fuse_scale_close") == 1) != refused
    assert not refused or (factor < 0 and scheme in ("int8-channel", "int4-g32"))


@pytest.mark.parametrize("k", [64, 768])
def test_vectors_are_close(k: int) -> None:
    inward = torch.linspace(-2, 2, k).sin() + 0.01
    assert near(product_near("", inward, "before", k)).count("fuse_scale_close") == 1
    assert near(product_near("", torch.linspace(-3, 3, N), "behind", k)).count("fuse_scale_close") == 1
    rows = product_near("int8-channel", torch.linspace(0.1, 3, N), "behind", k)
    assert near(rows, ("fold", *CLOSE)).count("fuse_scale_close") == 1


def test_mx_takes_no_factor_that_is_no_power_of_two() -> None:
    log = near(product_near("mxfp4", 0.3, "before"), ("fold", *CLOSE))
    assert log.count("fuse_scale_close") == 0
    assert "powers of two" in str(log)


def test_close_in_bfloat16_stays() -> None:
    b = Builder()
    x = b.call(aten.mul.Tensor, b.input(4, K, dtype=torch.bfloat16), 0.3)
    proof = exact(b, b.call(aten.linear.default, x, b.constant(random(N, K).bfloat16())), stages=CLOSE)
    assert "more than the tolerance" in proof.reasons()


def test_a_factor_within_blocks_stays_in_close() -> None:
    log = near(product_near("int8-channel", torch.linspace(1, 2, K), "before"), ("fold", *CLOSE))
    assert "differs within blocks" in str(log)


# -------------------------------------------------------------------------- ONNX


@pytest.mark.parametrize("trans", [0, 1])
def test_onnx_gemm(trans: int) -> None:
    b = onnx_graphs.Builder()
    x = b.call("Mul", b.input(4, K), b.constant(SIGNS.numpy()))
    w = random(N, K).numpy() if trans else random(K, N).numpy()
    y = b.call("Gemm", x, b.constant(w), b.constant(random(N).numpy()), transB=trans)
    assert gone(exact(b, y))


def test_onnx_matmul_and_conv_behind() -> None:
    b = onnx_graphs.Builder()
    x = codes_in(b, 2, 6, 5, 5)
    y = b.call(
        "Conv", x, b.constant(random(4, 6, 3, 3).numpy()), b.constant(random(4).numpy()), pads=[1, 1, 1, 1]
    )
    y = b.call("Div", y, b.constant(np.array([1, 2, 4, 8], np.float32).reshape(4, 1, 1)))
    z = b.call(
        "MatMul",
        b.call("Mul", codes_in(b, 4, K), b.constant(np.float32(4))),
        b.constant(random(K, N).numpy()),
    )
    proof = exact(b, y, z)
    assert gone(proof)
