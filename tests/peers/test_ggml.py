"""Dialect `ggml` is ggml's MXFP4, in C (the library in pywhispercpp) and in Python (gguf)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockscale.numerics.codec import Params
from conformance import cases
from conformance.data import F32, adversarial
from peers import left_out, runners
from peers.ours import Ours

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]
LEAST = 1_000_000
SCHEME = cases.mx("fp4_e2m1", "ggml")


@pytest.fixture(autouse=True)
def _peer(need: Any) -> None:
    need("_pywhispercpp")
    need("gguf")


def codes_of(stored: Any) -> Any:
    pairs = stored[:, 1:].astype(np.int64)
    return np.concatenate([pairs & 15, pairs >> 4], -1)


@pytest.mark.parametrize("peer", ["ggml", "gguf"])
def test_ggml(peer: str, ours: Ours, compare: Any) -> None:
    x = adversarial("fp4_e2m1", thorough=True)
    stored = getattr(runners, peer)(x)
    amax = left_out.finite_amax(x)
    out = {
        "in blocks whose log2 rounds up": left_out.log2_rounds_up(amax),
        "in blocks below 2^-125": (amax > 0) & (amax < 2.0**-125),
        "in blocks with Inf": np.isinf(x).any(-1, keepdims=True),
    }
    if peer == "gguf":
        out["in blocks with NaN"] = np.isnan(x).any(-1, keepdims=True)
    codes, params = ours.quantize(x, SCHEME)
    scales = stored[:, :1].astype(np.int64)
    compare(params.scales, scales, left_out=out, share=0.13, what="scales")
    compare(codes, codes_of(stored), x, left_out=out, share=0.13, least=LEAST, what="codes")
    values = getattr(runners, f"{peer}_dequantize")(stored)
    decoded = ours.dequantize(codes, SCHEME, params)
    compare(decoded, values, x, left_out=out, share=0.13, least=LEAST)
    faked = ours.fake_quantize(x, SCHEME)
    compare(faked, values, x, left_out=out, share=0.13, least=LEAST, what="faked")


@pytest.mark.parametrize("peer", ["ggml", "gguf"])
def test_ggml_ordinary_data(peer: str, ours: Ours, compare: Any) -> None:
    """Normal data near 1: nothing is left out."""
    x = np.random.default_rng(3).standard_normal((32768, 32)).astype(F32)
    stored = getattr(runners, peer)(x)
    codes, params = ours.quantize(x, SCHEME)
    compare(params.scales, stored[:, :1].astype(np.int64), what="scales")
    compare(codes, codes_of(stored), x, least=LEAST, what="codes")


@pytest.mark.parametrize("peer", ["ggml", "gguf"])
def test_ggml_decodes_every_byte(peer: str, ours: Ours, compare: Any) -> None:
    """All scale bytes and codes, but byte 255 (here NaN, there 2^128) and code 8 (here -0, there +0)."""
    stored = np.random.default_rng(1).integers(0, 256, (65536, 17)).astype(np.uint8)
    stored[:, 0] = np.arange(65536) % 256
    codes, scales = codes_of(stored), stored[:, :1].astype(np.int64)
    out = {"of scale byte 255": scales == 255, "of code 8": codes == 8}
    mine = ours.dequantize(codes, SCHEME, Params(scales))
    theirs = getattr(runners, f"{peer}_dequantize")(stored)
    compare(mine, theirs, left_out=out, share=0.07, least=LEAST)
