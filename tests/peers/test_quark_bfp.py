"""Block floating point in the dialects `quark` and `quark_compiler` is AMD Quark's. Nothing is left out."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from onnx import helper

from blockscale.numerics.scheme import refined, scheme_named
from blockscale.runtime.onnx_reference import Runner
from conformance.data import F32, adversarial, assert_same
from models.quark_bfp import MODES
from peers import runners
from peers.ours import Ours

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]
LEAST = 1_000_000
WIDTHS = (10, 11, 13, 16, 20, 24)
PRIME = [("mx9", 16), ("mx6", 13), ("mx4", 11)]


@pytest.fixture(autouse=True)
def _peer(need: Any) -> None:
    need("onnxruntime")
    with runners.quiet():
        need("quark.onnx.operators.custom_ops")


@cache
def data(width: int, block: int) -> Any:
    """Ties of narrow elements and of these, in all binades, beside all else."""
    r = np.random.default_rng(width)
    most = 1 << width - 8
    steps = r.integers(-most, most + 1, (1 << 20 - block.bit_length(), block)) / r.choice(
        [2, 4, 64], (1, block)
    )
    halves = np.ldexp(steps, r.integers(-150, 127 - (width - 8), (len(steps), 1))).astype(F32)
    return np.concatenate([adversarial(f"bfp{min(width, 16)}", block, thorough=True), halves])


@cache
def halves(block: int) -> Any:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    more = np.random.default_rng(7).choice(every, (1 << 20 - block.bit_length() + 1, block))
    return np.concatenate([data(16, block).astype(np.float16), every.reshape(-1, block), more])


@pytest.mark.parametrize("rounding", MODES)
@pytest.mark.parametrize("width", WIDTHS)
def test_to_bfp(width: int, rounding: str, ours: Ours, compare: Any) -> None:
    x = data(width, 8)
    mine = ours.fake_quantize(x, scheme_named(f"bfp{width},dialect=quark,rounding={rounding}"))
    theirs = runners.quark_bfp(x, bit_width=width, axis=-1, rounding_mode=MODES[rounding])
    compare(mine, theirs, x, least=LEAST)


@pytest.mark.parametrize("rounding", MODES)
def test_to_bfp_of_the_compiler(rounding: str, ours: Ours, compare: Any) -> None:
    x = data(16, 8)
    mine = ours.fake_quantize(x, scheme_named(f"bfp16,dialect=quark_compiler,rounding={rounding}"))
    settings = {"use_compiler_version_cpu_kernel": 1, "rounding_mode": MODES[rounding], "axis": -1}
    compare(mine, runners.quark_bfp(x, **settings), x, least=LEAST)


@pytest.mark.parametrize("rounding", MODES)
@pytest.mark.parametrize(("name", "width"), PRIME)
def test_to_bfp_prime(name: str, width: int, rounding: str, ours: Ours, compare: Any) -> None:
    x = data(width, 16)
    mine = ours.fake_quantize(x, scheme_named(f"{name},dialect=quark,rounding={rounding}"))
    theirs = runners.quark_bfp(
        x, bfp_method="to_bfp_prime", bit_width=width, block_size=16, axis=-1, rounding_mode=MODES[rounding]
    )
    compare(mine, theirs, x, least=LEAST)


@pytest.mark.parametrize(("size", "shift", "block"), [(4, 2, 16), (8, 3, 32), (1, 1, 8), (2, 0, 8)])
def test_other_sub_blocks(size: int, shift: int, block: int, ours: Ours, compare: Any) -> None:
    x = data(13, block)
    name = f"bfp13-g{block},dialect=quark,sub_block={size},sub_shift={shift}"
    theirs = runners.quark_bfp(
        x, bfp_method="to_bfp_prime", bit_width=13, block_size=block, axis=-1, rounding_mode=2,
        sub_block_size=size, sub_block_shift_bits=shift,
    )  # fmt: skip
    compare(ours.fake_quantize(x, scheme_named(name)), theirs, x, least=LEAST)


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "bfp16-g16,dialect=quark": {},
    "mx9,dialect=quark": {"bfp_method": "to_bfp_prime"},
    "bfp16-g16,dialect=quark_compiler": {"use_compiler_version_cpu_kernel": 1},
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_float16(name: str, ours: Ours, compare: Any) -> None:
    x = halves(16)
    theirs = runners.quark_bfp(x, axis=-1, block_size=16, rounding_mode=2, **CONFIGURATIONS[name])
    compare(ours.fake_quantize(x, scheme_named(name)), theirs, x, least=LEAST)


@pytest.mark.parametrize(
    ("shape", "axis"), [((3000, 77), -1), ((96, 2400), 0), ((40, 33, 50), 1), ((4321,), 1)]
)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_axes_and_short_blocks(
    name: str, shape: tuple[int, ...], axis: int, ours: Ours, compare: Any
) -> None:
    x = np.resize(data(16, 16), shape)
    scheme = refined(scheme_named(name), axis=axis if len(shape) > 1 else 0)
    settings = {"axis": axis, "block_size": 16, "rounding_mode": 2, **CONFIGURATIONS[name]}
    compare(ours.fake_quantize(x, scheme), runners.quark_bfp(x, op="BFPFixNeuron", **settings), x)


# ------------------------------------------------------------------------ the operators in ONNX models


def ran(x: Any, **settings: Any) -> Any:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    node = helper.make_node("BFPQuantizeDequantize", ["x"], ["y"], domain="com.amd.quark", **settings)
    values = [helper.make_tensor_value_info(name, kind, x.shape) for name in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.amd.quark", 1)]
    return Runner(helper.make_model(graph, opset_imports=opsets, ir_version=10)).run({"x": x})["y"]


@pytest.mark.parametrize("convert", [0, 1])
@pytest.mark.parametrize(
    "settings",
    [{}, {"bit_width": 13, "rounding_mode": 2}, {"bfp_method": "to_bfp_prime_shared", "block_size": 16}],
)
def test_the_operator(settings: dict[str, Any], convert: int) -> None:
    settings = {"convert_to_bfloat_before_bfp": convert, **settings}
    bits = np.random.default_rng(1).integers(0, 1 << 32, (2000, 37, 5), dtype=np.uint64).astype(np.uint32)
    for x in (bits.view(F32), np.resize(data(16, 8), (500, 37, 3)), halves(8)[:500, None]):
        assert_same(ran(x, **settings), runners.quark_bfp(x, **settings), x)
    for value in (1.2345, np.nan, 65519.0, 1e-40):
        for dtype in (F32, np.float16):
            one = np.full((1, 1), value, dtype)
            assert_same(ran(one, **settings), runners.quark_bfp(one, **settings), one)
    assert ran(np.zeros((0, 4), F32), **settings).shape == (0, 4)
