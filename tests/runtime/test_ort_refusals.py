"""What the operator library refuses, when a session is made and when it runs; the process lives on."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto as T

import blockscale.onnxruntime
from blockscale.errors import ArgumentError, InstallationError
from blockscale.numerics.arrays import Array
from runtime.ort_models import constant, model, node, session, value

X = value("x", T.FLOAT, ["a", 64])
Y = value("y", T.FLOAT)
MXFP4 = {"numbers": "mxfp4", "block": [1, 32]}


def refused(
    nodes: list[Any], inputs: list[Any] | None = None, outputs: list[Any] | None = None, **more: Any
) -> str:
    with pytest.raises(Exception, match="ONNXRuntime") as error:
        session(model(nodes, inputs or [X], outputs or [Y], **more))
    return str(error.value)


def fake(**attributes: Any) -> list[Any]:
    return [node("FakeQuantize", ["x"], ["y"], **attributes)]


@pytest.mark.parametrize(("attributes", "says"), [
    ({"block": [1, 32]}, "numbers = 'missing': a string; the operator needs it"),
    ({"numbers": "mxfp5", "block": [1, 32]}, "it begins with one of mxfp8, mxfp8_e4m3"),
    ({"numbers": "mxfp4,rule=amax", "block": [1, 32]}, "rule = 'amax'"),
    ({"numbers": "mxfp4,round=up", "block": [1, 32]}, "setting of 'mxfp4,round=up' = 'round': allowed are dialect"),
    ({"numbers": 4, "block": [1, 32]}, "numbers = 'an integer': a string"),
    ({"numbers": "mxfp4", "block": [32]}, "block = '(32)': one entry a dimension of shape (-1, 64)"),
    ({"numbers": "mxfp4", "block": [1, -32]}, "block = '(1, -32)': positive, or 0 for a whole dimension"),
    ({"numbers": "mxfp4", "block": 32}, "block = 'an integer': a list of integers"),
    ({"numbers": "mxfp4", "block": [1.0, 32.0]}, "block = 'a list of floats': a list of integers"),
    ({"numbers": "mxfp4"}, "block = '()': one entry a dimension of shape (-1, 64)"),
    (MXFP4 | {"seed": "7"}, "seed = 'a string': an integer"),
])  # fmt: skip
def test_attributes(attributes: dict[str, Any], says: str) -> None:
    message = refused(fake(**attributes))
    assert "blockscale::FakeQuantize 'FakeQuantize_y': " in message and says in message


@pytest.mark.parametrize(("attributes", "says"), [
    ({"element_dtype": "fp8"}, "element_dtype = 'fp8': allowed are int8, fp8_e4m3"),
    ({"block_size": 0}, "block_size = 0: at least 1"),
    ({"rounding_mode": 3}, "rounding_mode = 3: 0 (half_away), 1 (half_up) or 2 (half_even)"),
    ({"axis": 2}, "axis = 2: from -2 to 1 for shape (-1, 64)"),
    ({"axis": "1"}, "axis = 'a string': an integer"),
])  # fmt: skip
def test_attributes_of_quark(attributes: dict[str, Any], says: str) -> None:
    message = refused([node("MXQuantizeDequantize", ["x"], ["y"], "com.amd.quark", **attributes)])
    assert "com.amd.quark::MXQuantizeDequantize" in message and says in message


def dequantize(*inputs: str, **attributes: Any) -> list[Any]:
    return [
        node(
            "Dequantize",
            inputs,
            ["y"],
            **{"numbers": "mxfp4", "block": [1, 32], "shape": [-1, 64]} | attributes,
        )
    ]


CODES = [value("c", T.UINT8, ["a", 32]), value("s", T.UINT8, ["a", 2])]
X64 = [value("x", T.DOUBLE, ["a", 64])]
SF = value("s", T.FLOAT, ["a", 2])
C, C8, S = value("c", T.UINT8), value("c", T.INT8), value("s", T.UINT8)


@pytest.mark.parametrize(("nodes", "inputs", "outputs", "says"), [
    (dequantize("c", "s", shape=[64]), CODES, [Y], "shape = '(64)': as many sizes as block, (1, 32)"),
    (dequantize("c", "s", dtype=7), CODES, [Y], "dtype = 7: 1 (float32), 10 (float16) or 16 (bfloat16)"),
    (dequantize("c", "s", numbers="mxfp5"), CODES, [Y], "numbers = 'mxfp5': it begins with one of mxfp8"),
    ([node("Quantize", ["x", "s"], ["c"], numbers="mxfp4,rule=up", block=[1, 32])], [X, CODES[1]], [C], "rule = 'up'"),
    ([node("DynamicQuantize", ["x"], ["c", "s"], numbers="int8,rule=up", block=[1, 32])], [X], [C8, SF], "rule = 'up'"),
    ([node("DynamicQuantize", ["x"], ["c", "s"], numbers="int8", block=[32])], [X], [C8, SF], "block = '(32)'"),
    (dequantize("c", "s", dtype=10), CODES, [Y], "float16"),
    (dequantize("c", "s", numbers="int8"), CODES, [Y], "codes = 'uint8': int8 for int8 × f32"),
    (dequantize("c", "s", numbers="nvfp4"), CODES, [Y], "tensor_scale = 'missing'"),
    (dequantize("c", "s", numbers="uint8"), [CODES[0], SF], [Y], "zero_point = 'missing'"),
    (dequantize("c", "s", numbers="mxint8,dialect=quark"), CODES, [Y], "only fake-quantizes"),
    ([node("Quantize", ["x", "s"], ["c"], **MXFP4)], [X, CODES[1]], [C8], "int8"),
    ([node("Quantize", ["x"], ["c"], **MXFP4)], [X], [C], ""),
    ([node("DynamicQuantize", ["x"], ["c"], **MXFP4)], [X], [C], ""),
    ([node("FakeQuantize", ["x"], ["y"], **MXFP4)], X64, [value("y", T.DOUBLE)], "double"),
    ([node("DynamicQuantize", ["x"], ["c", "s"], **MXFP4)], X64, [C, S],
     "double"),
    ([node("FakeQuantize", ["x", "s"], ["y"], **MXFP4)], [X, SF], [Y], "scale = 'float32': uint8"),
    ([node("FakeQuantize", ["x", "s", "s", "s", "s"], ["y"], **MXFP4)], [X, CODES[1]], [Y], ""),
])  # fmt: skip
def test_operands(nodes: list[Any], inputs: list[Any], outputs: list[Any], says: str) -> None:
    assert says in refused(nodes, inputs, outputs)


def feeds_of(**arrays: Array) -> dict[str, Array]:
    return arrays


def test_errors_of_a_run_leave_the_session_as_it_was() -> None:
    static = [node("FakeQuantize", ["x", "s"], ["y"], numbers="int8", block=[1, 0])]
    on = session(model(static, [value("x", T.FLOAT), value("s", T.FLOAT)], [Y]))
    x, s = np.ones((2, 8), np.float32), np.ones((2, 1), np.float32)
    bad = [
        (feeds_of(x=x[0], s=s), "block = '(1, 0)': one entry a dimension of shape (8)"),
        (feeds_of(x=x, s=s[:1]), "scale shape = '(1, 1)': (2, 1) for shape (2, 8) in blocks of (1, 0)"),
        (feeds_of(x=x, s=-s), "scale = -1.000000: positive and finite, every one"),
        (feeds_of(x=x, s=s * np.float32(np.nan)), "positive and finite, every one"),
    ]
    for feeds, says in bad:
        with pytest.raises(Exception, match="blockscale::FakeQuantize 'FakeQuantize_y'") as error:
            on.run(None, feeds)
        assert says in str(error.value)
        assert (on.run(None, {"x": x, "s": s})[0] == x).all()


@pytest.mark.parametrize(("inputs", "says"), [
    ({"c": (2, 31), "s": (2, 2)}, "codes shape = '(2, 31)': (2, 32) for shape (2, 64)"),
    ({"c": (2, 2, 16), "s": (2, 2)}, "shape = '(-1, 64)': as many sizes as the codes of shape (2, 2, 16) have"),
])  # fmt: skip
def test_codes_of_a_run(inputs: dict[str, tuple[int, ...]], says: str) -> None:
    on = session(model(dequantize("c", "s"), [value("c", T.UINT8), value("s", T.UINT8)], [Y]))
    with pytest.raises(Exception, match="Dequantize_y") as error:
        on.run(None, {name: np.zeros(shape, np.uint8) for name, shape in inputs.items()})
    assert says in str(error.value)


def test_a_tensor_of_no_entries_is_none() -> None:
    """What an operator leaves out in the middle: a gap, or a tensor of shape (0,)."""
    x = np.random.default_rng(2).standard_normal((3, 64)).astype(np.float32)
    constants = [
        constant("s", np.full((3, 4), 0x38, np.uint8)), constant("t", np.float32(0.5)),
        constant("z", np.empty(0, np.int32)), constant("n", np.empty(0, np.float32)),
    ]  # fmt: skip
    found = []
    for names in (["x", "s", "z", "t"], ["x", "s", "", "t"]):
        made = node("FakeQuantize", names, ["y"], numbers="nvfp4", block=[1, 16])
        found.append(session(model([made], [X], [Y], constants)).run(None, {"x": x})[0])
    for names in (["x", "n", "z", "t"], ["x", "", "", "t"]):
        made = node("FakeQuantize", names, ["y"], numbers="nvfp4", block=[1, 16])
        found.append(session(model([made], [X], [Y], constants)).run(None, {"x": x})[0])
    assert (found[0] == found[1]).all() and (found[2] == found[3]).all() and (found[0] != found[2]).any()


# ------------------------------------------------------------------------------------------ the library itself


def test_another_device_is_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"device = 'cuda': 'cpu'; on another device run the portable form"
    ):
        blockscale.onnxruntime.library_path(device="cuda")


def test_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockscale.onnxruntime, "_NAME", "libnothing.so")
    with pytest.raises(InstallationError, match="reinstall blockscale"):
        blockscale.onnxruntime.library_path()


# Registers a session that runs, and counts the time of ours alone.
IMPORT = """
import sys, time
sys.path.insert(0, {tests!r})
start = time.perf_counter()
import blockscale.onnxruntime
path = blockscale.onnxruntime.library_path()
took = time.perf_counter() - start
assert not {{"torch", "onnx", "onnx_ir", "onnxruntime"}} & set(sys.modules)
import onnxruntime
assert onnxruntime.InferenceSession is not None and onnxruntime is not blockscale.onnxruntime
options = onnxruntime.SessionOptions()
start = time.perf_counter()
options.register_custom_ops_library(path)
print(took, time.perf_counter() - start)
"""


def test_import_and_registration_are_quick() -> None:
    best = [float("inf")] * 2
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", IMPORT.format(tests="tests")],
            capture_output=True,
            text=True,
            check=True,
        )
        best = [min(a, float(b)) for a, b in zip(best, done.stdout.split(), strict=True)]
    assert best[0] < 0.5 and best[1] < 0.2, best  # the first has numpy's import in it
