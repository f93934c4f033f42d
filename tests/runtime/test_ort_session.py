"""runtime/ort.py: models on ONNX Runtime, with our library, beside the reference evaluator."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper

from blockscale.errors import ArgumentError, DtypeError, FileError, GraphError, ShapeError, UnknownNameError
from blockscale.numerics import native
from blockscale.numerics.layout import Layout
from blockscale.numerics.observers import observer
from blockscale.numerics.scheme import numbers_named, scheme_named
from blockscale.runtime.onnx_calibrate import calibrate
from blockscale.runtime.onnx_reference import Runner
from blockscale.runtime.ort import Session
from passes.onnx_graphs import Builder, assert_equal, example
from runtime.ort_models import model, node, value

MXFP4 = {"numbers": "mxfp4", "block": [1, 32]}


def built(dtype: Any = np.float32) -> tuple[ir.Model, Any]:
    """Fake-quantized, stored and decoded; the first size is of the run."""
    b = Builder()
    x = b.given(np.nan_to_num(np.clip(example((4, 64)), -1e4, 1e4)).astype(dtype), dynamic=(0,))
    f = b.fake(x, "mxint8")
    y = b.dequantize(b.measure(f, "nvfp4"), f, "nvfp4")
    return b.done(y, f), b.examples[0]


def weighted() -> tuple[ir.Model, Any]:
    """Multiplied by a weight of several kilobytes that is stored in codes."""
    b = Builder()
    x = b.input(3, 64, dynamic=(0,))
    w = np.nan_to_num(example((64, 96), 4), posinf=1.0, neginf=-1.0).astype(np.float32)
    codes, stored = native.quantize(w, Layout(numbers_named("mxfp4"), w.shape, (32, 1)))
    like = b.constant(w)
    weight = b.dequantize([b.constant(codes), b.constant(stored.scales)], like, "mxfp4", (32, 1))
    return b.done(b.call("MatMul", x, weight)), np.nan_to_num(b.examples[0], posinf=1.0, neginf=-1.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_the_same_as_on_the_evaluator(dtype: Any) -> None:
    made, x = built(dtype)
    session = Session(made)
    assert session.inputs == ["x1"] and session.outputs == [str(v.name) for v in made.graph.outputs]
    found, wanted = session.run({"x1": x}), Runner(made).run({"x1": x})
    assert list(found) == list(wanted)
    assert_equal(list(found.values()), list(wanted.values()))


def test_every_kind_of_model(tmp_path: Path) -> None:
    made, x = weighted()
    wanted = Runner(made).run({"x1": x})
    ir.save(made, tmp_path / "model.onnx", external_data="weights.data")
    for one in (made, ir.to_proto(made), tmp_path / "model.onnx", str(tmp_path / "model.onnx")):
        found = Session(one, threads=1, optimize="none").run({"x1": x})
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-4)


def test_more_values_than_the_outputs() -> None:
    made, x = built()
    inner = str(made.graph.node(0).outputs[0].name)
    session = Session(made, also=[inner])
    assert set(session.run({"x1": x})) == set(session.outputs)
    assert_equal([session.fetch([inner], {"x1": x})[inner]], [Runner(made).values({"x1": x})[inner]])


def test_strides_and_scalars_are_taken() -> None:
    one = node("FakeQuantize", ["x"], ["y"], numbers="int8")
    session = Session(model([one], [value("x", T.FLOAT, [])], [value("y", T.FLOAT, [])]))
    assert session.run({"x": np.array(3.0, np.float32)})["y"].shape == ()
    made, x = built(ml_dtypes.bfloat16)
    wide = np.repeat(x, 2, 0)[::2]
    assert_equal(list(Session(made).run({"x1": wide}).values()), list(Session(made).run({"x1": x}).values()))


def test_threads_share_a_session() -> None:
    made, x = built()
    session = Session(made)
    wanted = [array.tobytes() for array in session.run({"x1": x}).values()]
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: session.run({"x1": x}), range(200)):
            assert [array.tobytes() for array in found.values()] == wanted


def test_functions_and_bodies() -> None:
    """As fused operators are written: a function that decodes, and a branch that quantizes."""
    body = helper.make_graph([node("FakeQuantize", ["x"], ["b"], **MXFP4)], "then", [], [value("b", T.FLOAT)])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["o"])], "else", [], [value("o", T.FLOAT)])
    function = helper.make_function("mine", "through", ["a"], ["r"], [
        node("DynamicQuantize", ["a"], ["c", "s"], **MXFP4),
        node("Dequantize", ["c", "s"], ["r"], shape=[-1, 64], **MXFP4),
    ], [helper.make_opsetid("blockscale", 1)])  # fmt: skip
    branch = helper.make_node("If", ["which"], ["y"], then_branch=body, else_branch=other)
    call = helper.make_node("through", ["x"], ["z"], domain="mine")
    inputs = [value("which", T.BOOL, []), value("x", T.FLOAT, ["a", 64])]
    made = model([branch, call], inputs, [value("y", T.FLOAT), value("z", T.FLOAT)])
    made.opset_import.append(helper.make_opsetid("blockscale", 1))
    made.functions.append(function)
    for which in (True, False):
        feeds = {"which": np.array(which), "x": example((2, 64))}
        assert_equal(list(Session(made).run(feeds).values()), list(Runner(made).run(feeds).values()))


# ------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(("inputs", "error", "says"), [
    ({}, ArgumentError, "x1 too"),
    ({"x1": np.zeros((4, 64), np.float32), "z": np.zeros(1)}, UnknownNameError, "allowed are x1"),
    ({"x1": np.zeros((4, 64))}, DtypeError, "float32"),
    ({"x1": np.zeros((4, 63), np.float32)}, ShapeError, "x1_0×64"),
])  # fmt: skip
def test_inputs_are_checked_as_on_the_evaluator(inputs: Any, error: type[Exception], says: str) -> None:
    made, _ = built()
    for runs in (Session(made), Runner(made)):
        with pytest.raises(error, match=says):
            runs.run(inputs)


def unknown(**attributes: Any) -> Any:
    return [node("FakeQuantize", ["x"], ["y"], **MXFP4 | attributes)]


def test_attributes_that_nobody_knows() -> None:
    """Also in bodies and functions, where onnxruntime tells the library nothing of them."""
    inputs, outputs = [value("x", T.FLOAT, ["a", 64])], [value("y", T.FLOAT)]
    says = r"attribute of blockscale::FakeQuantize 'FakeQuantize_y' = 'blok': allowed are numbers, block, seed; did"
    with pytest.raises(UnknownNameError, match=says):
        Session(model(unknown(blok=[1]), inputs, outputs))
    graph = helper.make_graph(unknown(blok=[1]), "g", [], outputs)
    branch = helper.make_node("If", ["c"], ["r"], then_branch=graph, else_branch=graph)
    with pytest.raises(UnknownNameError, match=says):
        Session(model([branch], [*inputs, value("c", T.BOOL, [])], [value("r", T.FLOAT)]))
    quark = node("MXFixNeuron", ["x"], ["y"], "com.vai.quantize", blocksize=16)
    with pytest.raises(UnknownNameError, match="did you mean 'block_size'"):
        Session(model([quark], inputs, outputs))


def test_what_cannot_be_loaded_or_run(tmp_path: Path) -> None:
    inputs, outputs = [value("x", T.FLOAT)], [value("y", T.FLOAT)]
    with pytest.raises(GraphError, match=r"onnxruntime 1\..* cannot load it: .*it begins with one of"):
        Session(model([node("FakeQuantize", ["x"], ["y"], numbers="mxfp5", block=[1])], inputs, outputs))
    session = Session(model(unknown(), inputs, outputs))
    with pytest.raises(GraphError, match=r"does not run on these inputs: .*one entry a dimension of shape"):
        session.run({"x": np.ones(3, np.float32)})
    (tmp_path / "broken.onnx").write_bytes(b"nothing")
    with pytest.raises(FileError, match="not an ONNX model"):
        Session(tmp_path / "broken.onnx")
    with pytest.raises(FileError, match="no such file"):
        Session(tmp_path / "absent.onnx")
    with pytest.raises(DtypeError, match=r"an onnx_ir\.Model"):
        Session(3)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------ calibration


def test_calibration_of_models_with_our_operators() -> None:
    made, x = built()
    name = str(made.graph.node(0).outputs[0].name)
    found = calibrate(made, [{"x1": x}], {name: observer("minmax", scheme_named("int8"), name="h")})
    assert found[name].high == Runner(made).values({"x1": x})[name].max()


def test_calibration_of_models_that_quark_wrote() -> None:
    quark = node("MXQuantizeDequantize", ["x"], ["h"], "com.amd.quark", rounding_mode=2)
    twice = helper.make_node("Add", ["h", "h"], ["y"])
    made = model([quark, twice], [value("x", T.FLOAT, ["a", 64])], [value("y", T.FLOAT)])
    x = np.random.default_rng(4).standard_normal((3, 64)).astype(np.float32)
    found = calibrate(made, [{"x": x}], {"h": observer("minmax", scheme_named("int8"), name="h")})
    assert found["h"].high == Runner(made).values({"x": x})["h"].max()
