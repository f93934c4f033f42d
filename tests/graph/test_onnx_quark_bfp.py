"""AMD Quark's block floating point in ONNX models: read, made ours where no bit changes, run as Quark does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import blockscale as bs
from blockscale.errors import BlockscaleError
from blockscale.graph.onnx import snapshot
from blockscale.graph.onnx_quantizers import quark_operator
from blockscale.graph.quant import quant_of
from blockscale.graph.view import Node
from blockscale.numerics.arrays import Array
from blockscale.numerics.moves import Permute
from blockscale.numerics.scheme import numbers_named, scheme_named
from blockscale.passes.pipeline import OPTIMIZE
from models import quark_bfp
from passes.onnx_graphs import Builder, assert_equal, example, op_types, run
from passes.proof import proven

NAMES = [("com.amd.quark", "BFPQuantizeDequantize"), ("com.vai.quantize", "BFPFixNeuron")]
WEIGHT = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((5, 64)).astype(np.float32)
PRIME = {"bfp_method": "to_bfp_prime", "block_size": 16}
TYPES = {np.dtype(np.float32): ir.DataType.FLOAT, np.dtype(np.float16): ir.DataType.FLOAT16}


def node(b: Builder, x: ir.Value, name: tuple[str, str] = NAMES[0], **settings: Any) -> Any:
    dtype = np.dtype(x.dtype.numpy())  # type: ignore[union-attr]
    return b.add(name[1], (x,), domain=name[0], types=[(TYPES[dtype], b.sizes(x))], **settings)


def model_of(x: Array, name: tuple[str, str] = NAMES[0], **settings: Any) -> ir.Model:
    b = Builder(domains=[name[0]])
    return b.done(node(b, b.given(x), name, **settings))


def the(model: ir.Model) -> Node:
    (found,) = (one for one in snapshot(model).nodes if one.kind in ("fake_quantize", "raw"))
    return found


def scalar(x: Array, axis: int, **settings: Any) -> Array:
    """By the model in exact rationals, an element at a time."""
    given = {"bit_width": 16, "rounding_mode": 0, "block_size": 8, **settings}
    size, width, mode = given["block_size"], given["bit_width"], given["rounding_mode"]
    rows = np.moveaxis(x.astype(np.float32), axis, -1)
    flat = rows.reshape(-1, rows.shape[-1])
    result = []
    for row in flat:
        values = [float(v) for v in row]
        if given.get("convert_to_bfloat_before_bfp"):
            values = [quark_bfp.bfloat16(v) for v in values]
        made: list[float] = []
        for start in range(0, len(values), size):
            block = values[start : start + size]
            if given.get("bfp_method", "to_bfp") == "to_bfp":
                compiler = bool(given.get("use_compiler_version_cpu_kernel"))
                made += quark_bfp.to_bfp(block, width, mode, compiler)
            else:
                made += quark_bfp.to_bfp_prime(block, width, mode)
        result.append(made)
    y = np.array(result, np.float32).reshape(rows.shape)
    with np.errstate(over="ignore"):
        return np.moveaxis(y, -1, axis).astype(x.dtype)


CASES: list[dict[str, Any]] = [
    {}, {"bit_width": 13, "rounding_mode": 2}, {"rounding_mode": 1, "axis": -1, "block_size": 5},
    {"use_compiler_version_cpu_kernel": 1}, PRIME, PRIME | {"bit_width": 11, "rounding_mode": 1, "axis": 0},
    {"bfp_method": "to_bfp_prime_shared", "bit_width": 13, "block_size": 4}, {"convert_to_bfloat_before_bfp": 1},
    PRIME | {"convert_to_bfloat_before_bfp": 1},
]  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("settings", CASES, ids=str)
def test_it_runs_as_quark(settings: dict[str, Any], dtype: Any) -> None:
    with np.errstate(all="ignore"):
        x = example((3, 21, 4), 5).astype(dtype)
    arguments = {key: value for key, value in settings.items() if key != "axis"}
    wanted = scalar(x, settings.get("axis", 1), **arguments)
    for name in NAMES:
        assert_equal(run(model_of(x, name, **settings), [x]), [wanted])


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_it_becomes_ours(settings: dict[str, Any]) -> None:
    x = example((2, 48, 4))
    b = Builder(domains=["com.amd.quark"])
    value = b.given(x)
    turned = b.move(value, Permute((0, 2, 1)))
    axis = settings.get("axis", 1)
    after = {0: 0, 1: 2, -1: 1}[axis]
    same = settings | {"axis": axis if axis < 0 else axis - 3}
    model = b.done(
        node(b, value, **settings), node(b, value, **same), node(b, turned, **settings | {"axis": after})
    )
    proof = proven(model, b.examples, stages=OPTIMIZE)
    if settings.get("convert_to_bfloat_before_bfp"):
        assert "rounds to bfloat16 first" in proof.reasons("canonicalize")
        assert op_types(proof.after).count("BFPQuantizeDequantize") >= 1
    else:
        assert "BFPQuantizeDequantize" not in op_types(proof.after), proof.log
        assert proof.kinds["fake_quantize"] == 1, proof.log


@pytest.mark.parametrize(
    ("settings", "numbers", "block"),
    [
        ({}, "bfp16,rounding=half_away,dialect=quark", 8),
        ({"bit_width": 24, "rounding_mode": 2}, "bfp24,dialect=quark", 8),
        (PRIME | {"rounding_mode": 2}, "mx9,dialect=quark", 16),
        (PRIME | {"bit_width": 11}, "mx4,rounding=half_away,dialect=quark", 16),
        ({"use_compiler_version_cpu_kernel": 1}, "bfp16,rounding=half_away,dialect=quark_compiler", 8),
        (PRIME | {"use_compiler_version_cpu_kernel": 1, "rounding_mode": 2}, "mx9,dialect=quark", 16),
    ],
)  # fmt: skip
def test_what_its_attributes_mean(settings: dict[str, Any], numbers: str, block: int) -> None:
    quant = quant_of(the(model_of(example((2, 64)), **settings)))
    assert (str(quant.numbers), quant.block) == (numbers, (1, block))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"bit_width": 9}, "bit_width is 9"), ({"bit_width": 32}, "bit_width is 32"),
    ({"rounding_mode": 3}, "rounding_mode is 3"), ({"bfp_method": "to_bfp2"}, "bfp_method is 'to_bfp2'"),
    ({"axis": 2}, "axis 2 on 2"), ({"block_size": 0}, "block_size is 0"),
    ({"use_compiler_version_cpu_kernel": 1, "bit_width": 13}, "8 bits"),
    (PRIME | {"sub_block_size": 3}, "no multiple"), (PRIME | {"sub_block_size": 0}, "sub_block_size is 0"),
    (PRIME | {"sub_block_shift_bits": 9}, "sub_shift"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "why"), REFUSED)
def test_what_quark_does_not_define_stays_with_a_reason(settings: dict[str, Any], why: str) -> None:
    x = example((2, 64))
    model = model_of(x, **settings)
    found = the(model)
    assert found.kind == "raw" and why in found.params["why"]
    with pytest.raises(BlockscaleError, match=why.split()[0]):
        run(model, [x])


@pytest.mark.parametrize("settings", [{}, PRIME])
def test_one_element_is_left_alone(settings: dict[str, Any]) -> None:
    x = np.array([[1.2345678]], np.float32)
    model = model_of(x, **settings)
    assert_equal(run(model, [x]), [x])
    proof = proven(model, [x], stages=OPTIMIZE)
    assert "tensor of one element" in proof.reasons("canonicalize")
    rounded = run(model_of(x, convert_to_bfloat_before_bfp=1, **settings), [x])
    assert_equal(rounded, [np.array([[1.234375]], np.float32)])


# --------------------------------------------------------------------------------- whole models


def product(weight: Array) -> Any:
    text = (
        '<ir_version: 10, opset_import: ["": 21]> g (float[5, 64] x) => (float[5, 48] y) {y = MatMul(x, W)}'
    )
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(weight, "W"))
    return model


def weights(model: Any) -> dict[str, Any]:
    return {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}


@pytest.mark.parametrize(
    ("recipe", "codes"),
    [("bfp16", np.int8), ("mx9", np.int16), ("mx4", np.uint8), ("bfp16,dialect=quark", np.int8)],
)
def test_weights_are_packed(recipe: str, codes: Any, tmp_path: Path) -> None:
    """Those of sub-blocks as elements so wide that all their steps are steps of the block."""
    w = np.abs(WEIGHT) if "quark" in recipe else WEIGHT  # none becomes -0, which has no code
    qm = bs.quantize_model(product(w), recipe)
    qm.save(tmp_path / "q.onnx")
    held = weights(onnx.load(tmp_path / "q.onnx"))
    assert held["W_codes"].dtype == codes
    scheme = replace(scheme_named(recipe), axis=0)
    wanted = bs.fake_quantize(X, replace(scheme, axis=-1)) @ bs.fake_quantize(w, scheme)
    np.testing.assert_allclose(np.asarray(qm(X)), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("recipe", ["bfp16", "mx9", "mx6", "bfp13", "bfp16,dialect=quark_compiler"])
def test_by_the_names_of_quark(recipe: str, tmp_path: Path) -> None:
    qm = bs.quantize_model(product(WEIGHT), recipe, compat="quark")
    qm.save(tmp_path / "q.onnx")
    nodes = onnx.load(tmp_path / "q.onnx").graph.node
    found = [one for one in nodes if one.op_type == "BFPQuantizeDequantize"]
    assert found and all(one.domain == "com.amd.quark" for one in found)
    np.testing.assert_array_equal(np.asarray(bs.load(tmp_path / "q.onnx")(X)), np.asarray(qm(X)))


@pytest.mark.parametrize("text", ["bfp10", "bfp24,rounding=half_up", "mx9", "bfp13,sub_block=4,sub_shift=2"])
def test_said_and_read(text: str) -> None:
    numbers = numbers_named(f"{text},dialect=quark")
    said = quark_operator(numbers, (1, 16, 1))
    assert not isinstance(said, str)
    assert said[0] == "BFPQuantizeDequantize"
    quant = quant_of(the(model_of(example((2, 64, 3)), **said[1])))
    assert (quant.numbers, quant.block) == (numbers, (1, 16, 1))


@pytest.mark.parametrize(
    ("text", "block", "why"),
    [
        ("bfp16", (1, 8), "dialect=quark"), ("bfp16,rounding=stochastic", (1, 8), "rounding"),
        ("bfp16,dialect=quark", (2, 8), "one size"), ("mx9", (1, 16), "dialect=quark"),
    ],
)  # fmt: skip
def test_what_has_no_name(text: str, block: tuple[int, ...], why: str) -> None:
    assert why in str(quark_operator(numbers_named(text), block))
