"""Calibration of ONNX models by onnxruntime, against values that onnx's reference evaluator computes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from blockscale.errors import CalibrationError, DtypeError, FileError
from blockscale.numerics.observers import METHODS, observer
from blockscale.numerics.scheme import Scheme, scheme_named
from blockscale.runtime import onnx_weights
from blockscale.runtime.calibration_data import random as random_data
from blockscale.runtime.onnx_calibrate import calibrate
from models.onnx_nets import CASES, random

INT8, UINT8 = scheme_named("int8"), scheme_named("uint8")
CHANNELS = Scheme(element="int8", scale="f32", axis=-1, block=1, others=0)

BODY = "g (float[b, 32] x) => (float[b, 16] y) { h = MatMul (x, W) r = Relu (h) y = MatMul (r, V) }"
IF = CASES["bodies"]


def model(body: str = BODY, **weights: Any) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21, "other" : 1]> {body}')
    for name, array in ({"W": random(32, 64), "V": random(64, 16)} | weights).items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def data(count: int = 3) -> list[dict[str, Any]]:
    return [{"x": random(2 + i, 32, seed=i) * (1 + i)} for i in range(count)]


def values(proto: onnx.ModelProto, tensor: str, batches: Any) -> Any:
    wanted = onnx.ModelProto()
    wanted.CopyFrom(proto)
    wanted.graph.output.append(onnx.ValueInfoProto(name=tensor))
    return np.concatenate([ReferenceEvaluator(wanted).run([tensor], batch)[0] for batch in batches])


def look(*tensors: str, scheme: Scheme = INT8, method: str = "minmax") -> dict[str, Any]:
    return {tensor: observer(method, scheme, name=tensor) for tensor in tensors}


def test_parameters_are_those_of_the_values() -> None:
    proto = model()
    found = calibrate(
        proto, iter(data()),
        {**look("x", "h", "y"), ("h", "again"): observer("minmax", CHANNELS, name="h"), **look("r", scheme=UINT8)},
    )  # fmt: skip
    assert list(found) == ["x", "h", "y", ("h", "again"), "r"]
    for key, tensor in (("x", "x"), ("h", "h"), ("y", "y"), (("h", "again"), "h"), ("r", "r")):
        seen = values(proto, tensor, data()) if tensor != "x" else np.concatenate([b["x"] for b in data()])
        axis = 0 if isinstance(key, tuple) else None
        np.testing.assert_allclose(
            found[key].high.reshape(-1), np.maximum(seen.max(axis), 0).reshape(-1), rtol=1e-5
        )
        np.testing.assert_allclose(
            found[key].low.reshape(-1), np.minimum(seen.min(axis), 0).reshape(-1), rtol=1e-5
        )
    assert found["r"].zero_points.reshape(()) == 0 and found["h"].zero_points is None
    assert found["x"].high == max(b["x"].max() for b in data())  # bit for bit: nothing computed it


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_shown_every_batch(method: str) -> None:
    by_hand = observer(method, UINT8, name="x")
    for batch in data():
        by_hand.update(batch["x"])
    found = calibrate(model(), data(), look("x", scheme=UINT8, method=method))["x"]
    np.testing.assert_array_equal(found.scales, by_hand.finish().scales)
    np.testing.assert_array_equal(found.zero_points, by_hand.finish().zero_points)


def test_every_source(tmp_path: Path) -> None:
    class Reader:
        def __init__(self) -> None:
            self.left = data()

        def get_next(self) -> Any:
            return self.left.pop(0) if self.left else None

    folder = tmp_path / "batches"
    folder.mkdir()
    for i, batch in enumerate(data()):
        np.save(folder / f"{i}.npy", batch["x"])
    expected = calibrate(model(), data(), look("h"))["h"]
    arrays = (batch["x"] for batch in data())
    for source in (Reader(), arrays, iter(data()), folder, str(folder)):
        np.testing.assert_array_equal(calibrate(model(), source, look("h"))["h"].scales, expected.scales)
    drawn = calibrate(model(), random_data(4, seed=1), look("h"))["h"]
    assert drawn.high > 0
    np.testing.assert_array_equal(
        calibrate(model(), random_data(4, seed=1), look("h"))["h"].scales, drawn.scales
    )


@pytest.mark.parametrize("form", ["proto", "ir", "path"])
def test_every_form_of_model(form: str, tmp_path: Path) -> None:
    proto = model()
    before = proto.SerializeToString()
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=form == "path", location="weights", size_threshold=0)
    proto = model()
    given = {"proto": proto, "ir": ir.from_proto(proto), "path": path}[form]
    expected = calibrate(model(), data(), look("y"))["y"]
    np.testing.assert_array_equal(calibrate(given, data(), look("y"))["y"].scales, expected.scales)
    if form == "ir":
        assert ir.to_proto(given) == ir.to_proto(ir.from_proto(proto))
    assert proto.SerializeToString() == before


def test_weights_are_shared_with_the_session() -> None:
    """What onnxruntime is handed has no large weight in it: a model of 2 GB would not fit a protobuf."""
    given = ir.from_proto(model())
    for name, value in given.graph.initializers.items():
        value.const_value = ir.Tensor(value.const_value.numpy().copy(), name=name)
    proto, weights = onnx_weights.without_weights(given, ["h"])
    assert set(weights) == {"W", "V"} and len(proto.SerializeToString()) < 2000
    assert weights["W"].ctypes.data == given.graph.initializers["W"].const_value.numpy().ctypes.data


def test_outer_values_of_control_flow() -> None:
    """What bodies read can be looked at; what they make cannot."""
    proto = IF.proto()
    batches = [{**IF.inputs, "c": np.array(c)} for c in (True, False)]
    found = calibrate(proto, batches, look("h", "y"))
    np.testing.assert_allclose(found["h"].high, values(proto, "h", batches).max(), rtol=1e-5)
    with pytest.raises(
        CalibrationError, match=r"calibration of 'r': it lies in a body of control flow.*MX formats"
    ):
        calibrate(proto, batches, look("r"))


def test_inputs_of_bodies() -> None:
    body = """g (int64 n, float[2, 32] x) => (float[2, 32] y) {
        one = Constant <value_int = 1> ()
        go = Cast <to = 9> (one)
        y = Loop (n, go, x) <
            body = b (int64 i, bool k, float[2, 32] s) => (bool again, float[2, 32] t) {
                again = Identity (k)
                t = Relu (s)
            }
        >
    }"""
    feeds = {"n": np.array(3), "x": random(2, 32)}
    assert calibrate(model(body), [feeds], look("y"))["y"].high == feeds["x"].max()
    for inner in ("s", "t"):
        with pytest.raises(CalibrationError, match=rf"'{inner}': it lies in a body of control flow"):
            calibrate(model(body), [feeds], look(inner))


def test_bfloat16_and_float16() -> None:
    body = "g (bfloat16[2, 32] x) => (bfloat16[2, 32] y) { y = Identity (x) }"
    x = random(2, 32).astype(ml_dtypes.bfloat16)
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {body}')
    assert calibrate(proto, [{"x": x}], look("y"))["y"].high.item() == float(x.max())
    half = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float16[2, 32] x) => (float16[2, 32] y) { y = Mul (x, x) }'
    )
    found = calibrate(half, [{"x": x.astype(np.float16)}], look("x", "y"))
    assert found["y"].high.item() == float((x.astype(np.float16) ** 2).max())


def test_weights_that_nothing_uses() -> None:
    found = calibrate(model(unused=random(64, 64)), data(), look("h"))["h"]
    np.testing.assert_array_equal(found.scales, calibrate(model(), data(), look("h"))["h"].scales)


def test_no_observer_needs_nothing() -> None:
    assert calibrate("there is no such file", None, {}) == {}


X = random(2, 32)
WRONG: dict[str, tuple[Any, str]] = {
    "none": (None, r"'h' takes static scales, which come from data: .*calibration=.*MX formats"),
    "empty": ([], r"'h' takes static scales, and the calibration data holds no batch.*read only once"),
    "NaN": ([{"x": X}, {"x": X * np.float32("nan")}], r"calibration of 'h', batch 2: 128 NaN and 0 infinite of 128"),
    "size": ([{"x": X[:, :16]}], r"batch 1, input 'x' has shape \[2, 16\]: the model takes float32 \[b, 32\]"),
    "rank": ([{"x": X[0]}], r"input 'x' has shape \[32\]: the model takes float32 \[b, 32\]"),
    "dtype": ([{"x": X.astype(np.float64)}], r"input 'x' is float64: the model takes float32; cast it"),
    "name": ([{"input": X}], r"batch 1: the model has no input 'input', only x"),
    "missing": ([{}], r"batch 1 lacks input 'x' \(float32 \[b, 32\]\)"),
    "no dict": ([(X,)], r"batch 1 is a tuple: give a dict of numpy arrays by input name \(x\)"),
    "one array": (X, r"a single ndarray: put it in a list"),
    "one batch": ({"x": X}, r"a single dict: put it in a list"),
    "no folder": ("nowhere", r"calibration folder 'nowhere': there is no such folder"),
    "a number": (7, r"calibration is a int: give an iterable"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_data(case: str) -> None:
    source, message = WRONG[case]
    with np.errstate(invalid="ignore"), pytest.raises(CalibrationError, match=message):
        calibrate(model(), source, look("h"))


def test_a_generator_that_ends_is_told() -> None:
    batches = iter(data())
    calibrate(model(), batches, look("h"))
    with pytest.raises(CalibrationError, match="A generator can be read only once"):
        calibrate(model(), batches, look("h"))

    def broken() -> Iterator[Any]:
        yield data()[0]
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        calibrate(model(), broken(), look("h"))


def test_wrong_tensors() -> None:
    with pytest.raises(CalibrationError, match=r"'W': it is a constant; blockscale\.choose_params gives"):
        calibrate(model(), data(), look("W"))
    with pytest.raises(CalibrationError, match=r"'hh': the model has no such value; did you mean 'h'"):
        calibrate(model(), data(), look("hh"))


def test_wrong_models(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"no\.onnx: there is no such file"):
        calibrate(tmp_path / "no.onnx", data(), look("h"))
    (tmp_path / "text.onnx").write_text("text")
    with pytest.raises(FileError, match="not an ONNX model that can be read"):
        calibrate(tmp_path / "text.onnx", data(), look("h"))
    with pytest.raises(DtypeError, match="a ModelProto or an onnx_ir"):
        calibrate(3, data(), look("h"))  # type: ignore[arg-type]
    strange = model("g (float[b, 32] x) => (float[b, 32] h) { h = other.Thing (x) }")
    with pytest.raises(
        CalibrationError, match=r"cannot load it.*Thing.*\(Operators of other domains need their library"
    ):
        calibrate(strange, data(), look("h"))
    mismatch = model("g (float[b, 32] x) => (float h) { r = Reshape (x, S) h = ReduceSum <keepdims = 0> (r) }",
                     S=np.array([7, 11], np.int64))  # fmt: skip
    with pytest.raises(CalibrationError, match="calibration batch 1: the model does not run on it"):
        calibrate(mismatch, data(), look("h"))
