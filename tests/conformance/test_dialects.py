"""The reference codec equals the models of the peers (models/dialects.py), bit for bit.

That the models are the peers is what tests/peers shows, with the same data and more of it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from blockscale.errors import CombinationError
from blockscale.numerics import codec
from blockscale.numerics.arrays import TENSOR_DTYPES
from blockscale.numerics.codec import Params
from blockscale.numerics.dialects import DIALECTS, RULES, dialect_named
from blockscale.numerics.formats import ELEMENTS, MX_ELEMENTS
from blockscale.numerics.layout import bind
from blockscale.numerics.scheme import Numbers, refined, scheme_named
from conformance import cases
from conformance.data import F32, adversarial, affine_ties, assert_same, least_ranges
from models import dialects as peers

Array = Any
data = cache(adversarial)


@pytest.mark.parametrize("tensor_format", ["f32", "f16"])
@pytest.mark.parametrize(("element", "rounding"), cases.QUARK)
def test_quark(element: str, rounding: str, tensor_format: str) -> None:
    with np.errstate(over="ignore", under="ignore"):
        x = data(element).astype(TENSOR_DTYPES[tensor_format])
    layout = bind(cases.mx(element, "quark", rounding=rounding), x.shape)
    ours = codec.fake_quantize(x, layout, tensor_format=tensor_format)
    assert_same(ours, peers.quark(x, element, cases.QUARK_MODES[rounding]), x)


@pytest.mark.parametrize("element", MX_ELEMENTS)
def test_quark_every_half(element: str) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    shuffled = np.random.default_rng(1).permutation(every)
    x = np.concatenate([every, shuffled]).reshape(-1, 32)
    layout = bind(cases.mx(element, "quark"), x.shape)
    assert_same(codec.fake_quantize(x, layout, tensor_format="f16"), peers.quark(x, element), x)


@pytest.mark.parametrize(("element", "rounding"), cases.MICROXCALING)
def test_microxcaling(element: str, rounding: str) -> None:
    x = data(element)
    layout = bind(cases.mx(element, "microxcaling", rounding=rounding), x.shape)
    theirs = peers.microxcaling(x, element, cases.MICROXCALING_NAMES[rounding])
    assert_same(codec.fake_quantize(x, layout), theirs, x)
    codes, params = codec.quantize(x, layout)
    decoded = codec.dequantize(codes, layout, params)
    if element == "mxint8":  # codes have no -0
        theirs = theirs + F32(0)
    assert_same(decoded, theirs, x)


@pytest.mark.parametrize("tensor_format", ["f32", "bf16"])
@pytest.mark.parametrize(("element", "rule"), cases.TORCHAO)
def test_torchao_mx(element: str, rule: str, tensor_format: str) -> None:
    x = data(element)
    if tensor_format == "bf16":
        x = peers.bfloat16(x)
    layout = bind(cases.mx(element, "torchao", rule), x.shape)
    codes, scales, values = peers.torchao_mx(x, element, rule, tensor_format)
    ours, params = codec.quantize(x, layout, tensor_format=tensor_format)
    assert_same(params.scales, scales)
    known = np.broadcast_to(scales != 255, codes.shape)  # a NaN block's codes say nothing
    assert_same(ours[known], codes[known], x[known])
    decoded = codec.dequantize(ours, layout, params, tensor_format)
    assert decoded.dtype == TENSOR_DTYPES[tensor_format]
    assert_same(decoded.astype(F32), values, x)
    faked = codec.fake_quantize(x, layout, tensor_format=tensor_format)
    assert_same(faked.astype(F32), values, x)


@pytest.mark.parametrize("tensor_scale", [1.0, 0.37, 1e-3, 3.7e-5, 2.0**-100, 1e30])
def test_torchao_nvfp4(tensor_scale: float) -> None:
    x = adversarial("fp4_e2m1", 16)
    layout = bind(cases.nvfp4("torchao"), x.shape)
    t = F32(tensor_scale)
    codes, scales, values = peers.torchao_nvfp4(x, t)
    ours, params = codec.quantize(x, layout, tensor_scale=t)
    assert_same(params.scales, scales)
    known = np.broadcast_to(scales != 0x7F, codes.shape)
    assert_same(ours[known], codes[known], x[known])
    assert_same(codec.dequantize(ours, layout, params), values, x)
    assert_same(codec.fake_quantize(x, layout, tensor_scale=t), values, x)


@pytest.mark.parametrize(("name", "limits"), cases.AFFINE.items())
def test_torchao_affine(name: str, limits: tuple[int, int]) -> None:
    x, scale, zero = affine_ties(np.random.default_rng(4), (512, 1024), 128, *limits)
    x[:, ::97] = np.inf
    x[::2] = -x[::2]
    base, _, rest = name.partition(",")
    text = f"{base}-g128,zero_point=true,dialect=torchao" + (rest and "," + rest)
    layout = bind(scheme_named(text), x.shape)
    params = Params(scale, zero)
    codes = peers.torchao_quantize_affine(x, scale, zero, *limits)
    ours, _ = codec.quantize(x, layout, params)
    assert_same(ours, codes, x)
    values = peers.torchao_dequantize_affine(codes, scale, zero)
    assert_same(codec.dequantize(ours, layout, params), values, x)
    assert_same(codec.fake_quantize(x, layout, params), values, x)


@pytest.mark.parametrize("rule", ["symmetric", "no_clip", "asymmetric"])
@pytest.mark.parametrize(("name", "limits"), cases.AFFINE.items())
def test_torchao_choose_qparams(name: str, limits: tuple[int, int], rule: str) -> None:
    if rule == "no_clip" and limits[0] == 0:
        pytest.skip("needs negative codes")
    x = np.concatenate([adversarial("mxint8", specials=False), least_ranges()])
    base, _, rest = name.partition(",")
    zero_point = str(rule != "no_clip").lower()
    text = f"{base}-g32,zero_point={zero_point},rule={rule},dialect=torchao" + (rest and "," + rest)
    params = codec.choose_params(x, bind(scheme_named(text), x.shape))
    scale, zero = peers.torchao_choose_qparams(x, rule, *limits)
    known = np.isfinite(scale)  # ours does not overflow
    assert (~known).sum() < 0.05 * known.size
    assert_same(params.scales[known], scale[known])
    if params.zero_points is not None:
        assert_same(params.zero_points[known], zero[known])


def test_ggml() -> None:
    x = data("fp4_e2m1")
    x = x[~np.isinf(x).any(1)]
    layout = bind(cases.mx("fp4_e2m1", "ggml"), x.shape)
    stored = peers.ggml(x)
    codes, params = codec.quantize(x, layout)
    assert_same(params.scales, stored[:, :1].astype(np.int64))
    assert_same(codes, peers.ggml_codes(stored), x)
    assert_same(codec.dequantize(codes, layout, params), peers.ggml_values(stored), x)
    assert_same(codec.fake_quantize(x, layout), peers.ggml_values(stored), x)


@pytest.mark.parametrize("name", [name for name in DIALECTS if name != "ocp"])
def test_ragged_and_other_axes(name: str) -> None:
    """A short block is one padded with zeros, along any axis, in every dialect."""
    element = "fp4_e2m1" if "fp4_e2m1" in dialect_named(name).elements else "bfp16"
    x = adversarial(element, 29, specials=False)[::50]
    scheme = cases.mx(element, name)
    padded = np.pad(x, [(0, 0), (0, 3)])
    expected = codec.fake_quantize(padded, bind(scheme, padded.shape))[:, :29]
    assert_same(codec.fake_quantize(x, bind(scheme, x.shape)), expected, x)
    across = codec.fake_quantize(x.T, bind(refined(scheme, axis=0), x.T.shape))
    assert_same(across.T, expected, x)
    for shape in ((), (1,), (0, 32), (3, 0)):
        small = np.full(shape, 1.3, F32)
        assert codec.fake_quantize(small, bind(scheme, shape)).shape == shape


def test_exactly_the_known_cells() -> None:
    """What a peer does not have is refused: a value it never gives is not a dialect of it."""
    scales = {"mx": "e8m0", "affine": "f32", "tensor_scaled": "fp8_e4m3"}
    for name, row in DIALECTS.items():
        if name == "ocp":
            continue
        taken = set()
        for family, scale in scales.items():
            for element in ELEMENTS:
                for rule in RULES:
                    try:
                        Numbers(
                            element=element, scale=scale, tensor_scale=family == "tensor_scaled",
                            rule=rule, dialect=name, zero_point=rule == "asymmetric",
                        )  # fmt: skip
                    except CombinationError:
                        continue
                    taken.add((family, element, rule))
        assert {family for family, _, _ in taken} == set(row.families)
        assert {e for f, e, _ in taken if f == "mx"} == set(row.elements)
    torchao = dialect_named("torchao")
    assert torchao.elements_of("tensor_scaled") == ("fp4_e2m1",)
    with pytest.raises(CombinationError, match="stochastic"):
        replace(cases.mx("fp4_e2m1", "ggml"), rounding="stochastic")
