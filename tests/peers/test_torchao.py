"""Dialect `torchao` is torchao's MX and NVFP4 prototypes and its affine primitives, on CPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from blockscale.numerics.codec import Params
from blockscale.numerics.formats import format_named
from blockscale.numerics.packing import pack, unpack
from blockscale.numerics.scheme import Scheme, scheme_named
from conformance import cases
from conformance.data import F32, adversarial, affine_ties, least_ranges, neighbours
from peers import left_out, runners
from peers.ours import Ours

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]
LEAST = 1_000_000
DTYPES = {"float32": np.dtype(F32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


@pytest.fixture(autouse=True)
def _peer(need: Any) -> None:
    with runners.quiet():
        need("torchao.prototype.mx_formats.mx_tensor")


@cache
def data(element: str) -> Any:
    return adversarial(element, thorough=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("element", "rule"), cases.TORCHAO)
def test_torchao_mx(element: str, rule: str, dtype: str, ours: Ours, compare: Any) -> None:
    x = data(element).astype(DTYPES[dtype])
    wide = x.astype(F32)
    stored, scales, values = runners.torchao_mx(wide, element, rule, dtype)
    scheme = cases.mx(element, "torchao", rule)
    codes, params = ours.quantize(x, scheme)
    rceil = {}
    if rule == "rceil":
        rceil = {"in blocks whose log2 rounds down": left_out.rceil_differs(wide, element)}
    compare(params.scales, scales.astype(np.int64), left_out=rceil, share=0.01, what="scales")
    out = rceil | {"in blocks of scale byte 0": scales == 0}
    values_share = 0.1
    mine = ours.dequantize(codes, scheme, params, dtype).astype(F32)
    compare(mine, values, wide, left_out=out, share=values_share, least=LEAST)
    faked = ours.fake_quantize(x, scheme).astype(F32)
    compare(faked, values, wide, left_out=out, share=values_share, least=LEAST, what="faked")
    out["in NaN blocks"] = scales == 255
    theirs = stored.astype(np.int64)
    if element == "fp4_e2m1":
        theirs = unpack(stored, format_named(element), 32)
        whole = ~np.any([*np.broadcast_arrays(*out.values())], axis=0)[:, 0]
        assert (pack(codes, format_named(element))[whole] == stored[whole]).all()
    compare(codes, theirs, wide, left_out=out, share=0.13, least=LEAST, what="codes")


@pytest.mark.parametrize("tensor_scale", ["amax", 1.0, 0.37, 1e-3, 3.7e-5, 2.0**-100, 1e30])
def test_torchao_nvfp4(tensor_scale: Any, ours: Ours, compare: Any) -> None:
    x = adversarial("fp4_e2m1", 16, thorough=True)
    if tensor_scale == "amax":
        x = x[(np.abs(x) < 2.0**60).all(1)]  # else all is 0
        x = np.concatenate([x, nvfp4_ties(F32(np.abs(x).max() / F32(2688)))])
        t = runners.torchao_tensor_scale(x)
        dynamic = ours.quantize(x[::50], cases.nvfp4("torchao"))[1].tensor_scale
        assert dynamic == runners.torchao_tensor_scale(x[::50])
    else:
        t = F32(tensor_scale)
        x = np.concatenate([x, nvfp4_ties(t)])
    check_nvfp4(x, t, ours, compare)


def nvfp4_ties(t: Any) -> Any:
    """Ties of the element grid ± 2 ulps under scales t · b: where a reciprocal is not a division."""
    r = np.random.default_rng(8)
    b = np.arange(8, 127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(F32)
    middles = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6], F32)
    scale = r.choice(b, (60000, 1)) * F32(t)
    with np.errstate(over="ignore"):
        x = neighbours(scale * r.choice(middles, (60000, 16)), r.integers(-2, 3, (60000, 16)))
        x[:, :1] = scale * F32(6)
    return x[np.isfinite(x).all(1)] * r.choice([F32(-1), F32(1)], (1, 16))


def check_nvfp4(x: Any, t: Any, ours: Ours, compare: Any) -> None:
    scheme = cases.nvfp4("torchao")
    stored, scales, values = runners.torchao_nvfp4(x, t)
    codes, params = ours.quantize(x, scheme, tensor_scale=t)
    compare(params.scales, scales.astype(np.int64), what="scales")
    theirs = unpack(stored, format_named("fp4_e2m1"), 16)
    out = {"in NaN blocks": scales == 0x7F}
    compare(codes, theirs, x, left_out=out, share=0.03, least=LEAST, what="codes")
    compare(ours.dequantize(codes, scheme, params), values, x, least=LEAST)
    compare(ours.fake_quantize(x, scheme, tensor_scale=t), values, x, least=LEAST, what="faked")


def affine_scheme(name: str, group: int, rule: str | None = None) -> Scheme:
    base, _, rest = name.partition(",")
    settings = [rest] if rest else []
    settings.append(f"zero_point={str(rule != 'no_clip').lower()}")
    if rule:
        settings.append(f"rule={rule}")
    return scheme_named(f"{base}-g{group},{','.join(settings)},dialect=torchao")


@pytest.mark.parametrize("name", cases.AFFINE)
def test_torchao_affine(name: str, ours: Ours, compare: Any) -> None:
    limits = cases.AFFINE[name]
    x, scale, zero = affine_ties(np.random.default_rng(4), (2048, 1024), 128, *limits)
    x[::2] = -x[::2]
    r = np.random.default_rng(9)
    x[r.random(x.shape) < 0.002] = np.inf
    x[r.random(x.shape) < 0.002] = np.nan
    scheme = affine_scheme(name, 128)
    params = Params(scale, zero)
    theirs = runners.torchao_quantize_affine(x, 128, scale, zero, *limits).astype(np.int64)
    codes, _ = ours.quantize(x, scheme, params)
    out = {"NaN": np.isnan(x)}
    compare(codes, theirs, x, left_out=out, share=0.003, least=LEAST, what="codes")
    values = runners.torchao_dequantize_affine(codes, 128, scale, zero, *limits)
    compare(ours.dequantize(codes, scheme, params), values, x, least=LEAST)
    compare(ours.fake_quantize(x, scheme, params), values, x, least=LEAST, what="faked")


@pytest.mark.parametrize("rule", ["symmetric", "no_clip", "asymmetric"])
@pytest.mark.parametrize("name", cases.AFFINE)
def test_torchao_choose_qparams(name: str, rule: str, ours: Ours, compare: Any) -> None:
    if rule == "no_clip" and cases.AFFINE[name][0] == 0:
        pytest.skip("needs negative codes")
    x = np.concatenate([adversarial("mxint8", thorough=True, specials=False), least_ranges()])
    params = ours.choose_params(x, affine_scheme(name, 32, rule))
    scale, zero = runners.torchao_choose_qparams(x, rule, *cases.AFFINE[name])
    out = {"whose range overflows": ~np.isfinite(scale)}
    compare(params.scales, scale, left_out=out, share=0.01, what="scales")
    if params.zero_points is not None:
        compare(params.zero_points, zero, left_out=out, share=0.01, what="zeros")
