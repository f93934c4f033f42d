"""Absorb: Q on codes that a DQ of the same parameters decodes (error 13 of the motion table: only then)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from passes import onnx_graphs
from passes.fx_graphs import Builder, aten
from passes.proof import Proof, proven

STAGES = ("absorb",)
INT8 = "int8,dynamic=false"
UINT8 = "uint8,dynamic=false"


def params(b: Any, scheme: str, shape: tuple[int, ...], scale: float = 0.25, zero: int = 3) -> list[Any]:
    """Scale and zero point of full rank."""
    numbers = torch.full(shape, scale)
    if len(shape) and max(shape) > 1:
        numbers = numbers * torch.linspace(0.5, 1.5, numbers.numel()).reshape(shape)
    made = [b.constant(numbers)]
    if scheme.startswith("uint"):
        made.append(b.constant(torch.full(shape, zero, dtype=torch.int32)))
    return made


def decoded(b: Builder, x: Any, scheme: str, given: list[Any], block: Any = None) -> Any:
    return b.dequantize([b.quantize(x, scheme, block, *given), *given], x, scheme, block)


def ends(b: Builder, y: Any, scheme: str, given: list[Any], block: Any = None) -> Proof:
    """With Q of the same parameters at the end, and DQ behind it."""
    return proven(b.done(decoded(b, y, scheme, given, block)), b.examples, stages=STAGES)


@pytest.mark.parametrize(
    "scheme", [INT8, UINT8, "int4,dynamic=false", "int16,dynamic=false", "fp8_e4m3,dynamic=false"]
)
@pytest.mark.parametrize("shape", [(1, 1), (4, 1), (1, 8), (4, 2)])
def test_quantize_of_the_same_parameters(scheme: str, shape: tuple[int, ...]) -> None:
    b = Builder()
    x = b.input(4, 8)
    block = [0 if n == 1 else size // n for n, size in zip(shape, (4, 8), strict=True)]
    given = params(b, scheme, shape)
    proof = ends(b, decoded(b, x, scheme, given, block), scheme, given, block)
    assert proof.kinds["quantize"] == 1


def test_equal_constants_are_the_same_parameters() -> None:
    b = Builder()
    y = decoded(b, b.input(4, 8), UINT8, params(b, UINT8, (1, 1)))
    assert ends(b, y, UINT8, params(b, UINT8, (1, 1))).kinds["quantize"] == 1


@pytest.mark.parametrize(("scale", "zero"), [(0.5, 3), (0.25, 4)])
def test_other_parameters_are_a_requantize(scale: float, zero: int) -> None:
    b = Builder()
    y = decoded(b, b.input(4, 8), UINT8, params(b, UINT8, (1, 1)))
    proof = ends(b, y, UINT8, params(b, UINT8, (1, 1), scale, zero))
    assert proof.kinds["quantize"] == 2
    assert "requantize" in proof.reasons()


def test_other_numbers_are_a_requantize() -> None:
    b = Builder()
    given = params(b, INT8, (1, 1))
    y = decoded(b, b.input(4, 8), INT8, given)
    proof = ends(b, y, INT8 + ",quant_min=-100", given)
    assert proof.kinds["quantize"] == 2


def test_saturation_in_between_can_be_seen() -> None:
    """Error 13: a scale so large that decoding overflows, a dtype too narrow for the codes."""
    b = Builder()
    given = params(b, INT8, (1, 1), 3e36)
    proof = ends(b, decoded(b, b.input(4, 8), INT8, given), INT8, given)
    assert proof.kinds["quantize"] == 2
    assert "survives" in proof.reasons()
    b = Builder()
    scheme = "int16,dynamic=false"
    given = params(b, scheme, (1, 1))
    y = decoded(b, b.input(4, 8, dtype=torch.bfloat16), scheme, given)
    assert ends(b, y, scheme, given).kinds["quantize"] == 2


def test_rounding_in_between_can_be_seen() -> None:
    b = Builder()
    scheme = INT8 + ",rounding=toward_zero"
    given = params(b, scheme, (1, 1), 0.7)
    assert ends(b, decoded(b, b.input(4, 8), scheme, given), scheme, given).kinds["quantize"] == 2


def test_a_scale_of_the_run_may_overflow() -> None:
    b = Builder()
    x, scale = b.input(4, 8), b.given(torch.full((1, 1), 0.5))
    proof = ends(b, decoded(b, x, INT8, [scale]), INT8, [scale])
    assert proof.kinds["quantize"] == 2
    assert "run time" in proof.reasons()


def test_codes_of_others_may_be_any() -> None:
    """Codes beyond quant_min are clamped by Q, so it stays."""
    b = Builder()
    codes = b.given(torch.arange(-128, 128, dtype=torch.int8).reshape(4, 64))
    like = b.input(4, 64)
    given = params(b, INT8, (1, 1))
    for scheme, left in ((INT8, 0), (INT8 + ",quant_min=-127", 1)):
        y = b.dequantize([codes, *given], like, scheme)
        proof = proven(_finished(b, b.quantize(y, scheme, None, *given)), b.examples, stages=STAGES)
        assert proof.kinds["quantize"] == left


def _finished(b: Builder, *outputs: Any) -> Any:
    """A module of the graph so far; the builder goes on."""
    graph = torch.fx.Graph()
    copied: dict[Any, Any] = {}
    graph.graph_copy(b.graph, copied)
    graph.output(tuple(copied[node] for node in outputs))
    graph.eliminate_dead_code()
    return torch.fx.GraphModule(b.root, graph)


# -------------------------------------------------------------------------- operators between


def relu(b: Builder, x: Any) -> Any:
    return b.call(aten.relu.default, x)


def relu6(b: Builder, x: Any) -> Any:
    return b.call(aten.hardtanh.default, x, 0.0, 6.0)


def clamp(b: Builder, x: Any) -> Any:
    return b.call(aten.clamp.default, x, -1.3, 2.6)


def clamp_low(b: Builder, x: Any) -> Any:
    return b.call(aten.clamp.default, x, -0.125)


def clamp_high(b: Builder, x: Any) -> Any:
    return b.call(aten.clamp.default, x, None, 1e9)


def crossed(b: Builder, x: Any) -> Any:
    return b.call(aten.clamp.default, x, 2.0, 1.0)


def pool(b: Builder, x: Any) -> Any:
    return b.call(aten.max_pool2d.default, x, [3, 3], [2, 2], [1, 1])


def reshape(b: Builder, x: Any) -> Any:
    return b.call(aten.reshape.default, x, [2, -1])


def transposed(b: Builder, x: Any) -> Any:
    return b.call(aten.transpose.int, x, 1, 3)


def half(b: Builder, x: Any) -> Any:
    return b.call(aten.slice.Tensor, x, 3, 0, 4)


SELECTING = [relu, relu6, clamp, clamp_low, clamp_high, crossed, pool]


def through(scheme: str, between: list[Any], scale: float = 0.05, zero: int = 100) -> Proof:
    b = Builder()
    x = b.input(2, 3, 6, 8)
    y = decoded(b, x, scheme, params(b, scheme, (1, 1, 1, 1), scale, zero))
    for operator in between:
        y = operator(b, y)
    return ends(b, y, scheme, params(b, scheme, (1,) * y.meta["val"].dim(), scale, zero))


@pytest.mark.parametrize(("scheme", "scale"), [(INT8, 0.05), (UINT8, 0.05), ("int16,dynamic=false", 1e-4)])
@pytest.mark.parametrize("between", [*([one] for one in SELECTING), [reshape], [relu, pool, transposed, half],
                                     [half, clamp, pool, reshape, relu]])  # fmt: skip
def test_codes_go_through(scheme: str, scale: float, between: list[Any]) -> None:
    proof = through(scheme, between, scale)
    assert proof.kinds["quantize"] == 1
    assert proof.log.count("absorb") == 1


@pytest.mark.parametrize(("scheme", "between", "why"), [
    ("int4,dynamic=false", [relu], "share a byte"),
    ("int4,dynamic=false", [transposed], "share a byte"),
    ("uint16,dynamic=false", [relu], "uint16"),
    ("fp8_e4m3,dynamic=false", [pool], "order of their codes"),
])  # fmt: skip
def test_codes_that_cannot_go_through(scheme: str, between: list[Any], why: str) -> None:
    proof = through(scheme, between, 1.0, 7)
    assert proof.kinds["quantize"] == 2
    assert why in proof.reasons()


def test_an_operator_that_computes_stays() -> None:
    assert through(INT8, [lambda b, x: b.call(aten.gelu.default, x)]).kinds["quantize"] == 2


def test_a_pool_in_one_dimension_stays() -> None:
    b = Builder()
    x = b.input(2, 3, 8)
    given = params(b, INT8, (1, 1, 1))
    y = b.call(aten.max_pool1d.default, decoded(b, x, INT8, given), [2], [2])
    assert ends(b, y, INT8, given).kinds["quantize"] == 2


def channels(scheme: str, block: list[int], shape: tuple[int, ...], operator: Any) -> Proof:
    b = Builder()
    x = b.input(2, 3, 6, 8)
    given = params(b, scheme, shape)
    return ends(b, operator(b, decoded(b, x, scheme, given, block)), scheme, given, block)


@pytest.mark.parametrize("scheme", [INT8, UINT8, "fp8_e4m3,dynamic=false"])
def test_a_cat_of_equal_scales(scheme: str) -> None:
    b = Builder()
    inputs = [b.input(2, n, 4, 4) for n in (3, 5)]
    given = params(b, scheme, (1, 1, 1, 1))
    one, other = (decoded(b, x, scheme, given) for x in inputs)
    if not scheme.startswith("fp8"):
        one = relu(b, one)
    both = b.call(aten.cat.default, [one, other, one], 1)
    assert ends(b, both, scheme, given).kinds["quantize"] == 2


def test_a_cat_of_other_scales_or_by_channel_stays() -> None:
    b = Builder()
    given = params(b, INT8, (1, 1))
    one, other = (
        decoded(b, b.input(2, 4), INT8, given),
        decoded(b, b.input(2, 4), INT8, params(b, INT8, (1, 1), 0.5)),
    )
    assert ends(b, b.call(aten.cat.default, [one, other], 1), INT8, given).kinds["quantize"] == 3
    b = Builder()
    given = params(b, INT8, (2, 1))
    one, other = (decoded(b, b.input(2, 4), INT8, given, [1, 0]) for _ in range(2))
    proof = ends(b, b.call(aten.cat.default, [one, other], 1), INT8, given, [1, 0])
    assert "follow a cat" in proof.reasons()


def test_a_cat_with_floats_stays() -> None:
    b = Builder()
    given = params(b, INT8, (1, 1))
    both = b.call(aten.cat.default, [decoded(b, b.input(2, 4), INT8, given), b.input(2, 4)], 0)
    assert ends(b, both, INT8, given).kinds["quantize"] == 2


def test_scales_by_channel() -> None:
    place: tuple[list[int], tuple[int, ...]] = ([0, 1, 0, 0], (1, 3, 1, 1))
    assert channels(INT8, *place, relu).kinds["quantize"] == 1
    assert channels(INT8, *place, pool).kinds["quantize"] == 1
    assert channels(INT8, *place, clamp).kinds["quantize"] == 2  # its limits are other codes in each channel
    assert channels(UINT8, *place, relu).kinds["quantize"] == 2
    rows: tuple[list[int], tuple[int, ...]] = ([0, 0, 2, 0], (1, 1, 3, 1))
    assert channels(INT8, *rows, relu).kinds["quantize"] == 1
    b = Builder()
    y = pool(b, decoded(b, b.input(2, 3, 6, 8), INT8, params(b, INT8, (1, 1, 3, 1)), [0, 0, 2, 0]))
    proof = ends(b, y, INT8, params(b, INT8, (1, 1, 3, 1)), [0, 0, 1, 0])
    assert proof.kinds["quantize"] == 2


def test_a_float_result_that_is_used_stays() -> None:
    b = Builder()
    given = params(b, INT8, (1, 1, 1, 1))
    y = pool(b, decoded(b, b.input(2, 3, 6, 8), INT8, given))
    proof = proven(b.done(decoded(b, y, INT8, given), y), b.examples, stages=STAGES)
    assert proof.kinds["quantize"] == 2
    assert "used elsewhere" in proof.reasons()


def test_a_dequantize_that_others_use_may_stay() -> None:
    b = Builder()
    given = params(b, INT8, (1, 1, 1, 1))
    y = decoded(b, b.input(2, 3, 6, 8), INT8, given)
    proof = proven(b.done(decoded(b, pool(b, y), INT8, given), y), b.examples, stages=STAGES)
    assert (proof.kinds["quantize"], proof.kinds["dequantize"]) == (1, 2)


def test_memory_that_is_written_to_stays() -> None:
    b = Builder()
    given = params(b, INT8, (1, 1))
    y = decoded(b, b.input(4, 8), INT8, given)
    q = b.quantize(y, INT8, None, *given)
    z = b.call(aten.mul_.Tensor, y, 2.0)
    proof = proven(b.done(b.dequantize([q, *given], y, INT8), z), b.examples, stages=STAGES)
    assert proof.kinds["quantize"] == 2
    assert "writes to" in proof.reasons()


def test_sizes_known_only_at_run_time() -> None:
    b = Builder()
    x = b.input(2, 3, 6, 8, dynamic=(0, 2))
    given = params(b, UINT8, (1, 1, 1, 1))
    y = transposed(b, relu(b, decoded(b, x, UINT8, given)))
    assert ends(b, y, UINT8, given).kinds["quantize"] == 1


# -------------------------------------------------------------------------- measured scales


def measured_twice(
    scheme: str, second: str = "", *, dtype: torch.dtype = torch.float32, between: Any = None
) -> Proof:
    b = Builder()
    x = b.input(4, 64, dtype=dtype)
    y = b.dequantize(b.measure(x, scheme), x, scheme)
    if between is not None:
        y = between(b, y)
    codes, scale, *more = b.measure(y, second or scheme)
    return proven(b.done(b.dequantize([codes, scale, *more], y, second or scheme), codes, scale),
                  b.examples, stages=STAGES)  # fmt: skip


@pytest.mark.parametrize("scheme", ["mxfp4", "mxint8", "mxfp8", "mxfp6", "mxfp4-g8,rule=even"])
def test_mx_finds_its_scales_again(scheme: str) -> None:
    assert measured_twice(scheme).kinds["quantize"] == 1


@pytest.mark.parametrize(("scheme", "second", "why"), [
    ("mxfp4,rule=ceil", "", "another scale"),
    ("mxfp4,rule=mse", "", "another scale"),
    ("mxfp4,rule=even,rounding=half_up", "", "another scale"),
    ("nvfp4", "", "measured again"),
    ("int8-token", "", "measured again"),
    ("mxfp4", "mxfp4-g16", "its equal"),
    ("mxint8", "int8-token", "requantize"),  # error 10: both steps stay
    ("int8-token", "mxint8", "requantize"),
    ("mxint8", "mxfp4", "requantize"),
])  # fmt: skip
def test_scales_that_may_be_others(scheme: str, second: str, why: str) -> None:
    proof = measured_twice(scheme, second)
    assert proof.kinds["quantize"] == 2
    assert why in proof.reasons()


def test_measured_after_an_operator_stays() -> None:
    proof = measured_twice("mxfp4", between=relu)
    assert proof.kinds["quantize"] == 2
    assert "measured after" in proof.reasons()


def test_measured_in_bfloat16_stays() -> None:
    assert measured_twice("mxfp8", dtype=torch.bfloat16).kinds["quantize"] == 2


# -------------------------------------------------------------------------- ONNX


@pytest.mark.parametrize("scheme", [INT8, UINT8])
def test_onnx(scheme: str) -> None:
    b = onnx_graphs.Builder()
    x = b.input(2, 3, 6, 8)
    y = decoded(b, x, scheme, params(b, scheme, (1, 1, 1, 1)))
    y = b.call("Relu", y)
    if scheme == UINT8:  # onnx's reference evaluator pads int8 with NaN
        y = b.call("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    y = b.call("Transpose", y, perm=[0, 2, 3, 1])
    y = b.call("Clip", y, b.constant(np.float32(0.3)), b.constant(np.float32(2.2)))
    assert ends(b, y, scheme, params(b, scheme, (1, 1, 1, 1))).kinds["quantize"] == 1
