"""The runner of ONNX models: our operators are the codec, standard ones what onnxruntime computes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper

from blockscale.errors import (
    ArgumentError,
    BlockscaleError,
    DtypeError,
    FileError,
    GraphError,
    ScaleError,
    ShapeError,
    UnknownNameError,
)
from blockscale.graph.onnx_quantizers import DOMAIN
from blockscale.numerics import native
from blockscale.numerics.arrays import TENSOR_DTYPES, Array
from blockscale.numerics.invariants import scale_dtype
from blockscale.numerics.layout import Layout
from blockscale.numerics.native import Stored
from blockscale.runtime.onnx_reference import Runner
from models import dialects
from numerics.moving import layouts, params_for, tensor
from passes.onnx_graphs import Builder, assert_equal, equal, example, run

# ------------------------------------------------------------------------------------------ ours


@settings(max_examples=150)
@given(layouts(), st.integers(0, 1 << 20), st.sampled_from((0, 7, (1 << 64) - 1)))
def test_our_operators_are_the_codec(layout: Layout, place: int, seed: int) -> None:
    x, numbers = tensor(place, layout.shape), layout.numbers
    b = Builder()
    settings_of = {
        "numbers": str(numbers),
        "block": list(layout.block),
        "seed": seed - (1 << 64) * (seed >> 63),
    }
    params = params_for(layout, place)
    if params is None:
        outputs = b.measure(b.given(x), str(numbers), layout.block)
        outputs[0].producer().attributes.add(ir.AttrInt64("seed", settings_of["seed"]))  # type: ignore[union-attr]
        codes, stored = native.quantize(x, layout, seed=seed)
        made = run(b.done(*outputs), [x])
        assert_equal(made[:2], [codes, stored.scales])
        for result, wanted in zip(made[2:], (stored.zero_points, stored.tensor_scale), strict=True):
            assert result.shape == (0,) if wanted is None else equal(result, np.asarray(wanted))
        return
    zeros = None if params.zero_points is None else params.zero_points.astype(np.int32)
    stored = Stored(params.scales.astype(scale_dtype(numbers)), zeros)
    given_params = [b.constant(stored.scales), *([] if zeros is None else [b.constant(zeros)])]
    y = b.given(x)
    q = b.quantize(y, str(numbers), layout.block, *given_params)
    back = b.dequantize([q, *given_params], y, str(numbers), layout.block)
    fake = b.fake(y, str(numbers), layout.block, *given_params)
    codes, _ = native.quantize(x, layout, stored)
    values = native.dequantize(codes, layout, stored)
    assert_equal(run(b.done(q, back, fake), [x]), [codes, values, native.fake_quantize(x, layout, stored)])


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_values_are_of_the_dtype_that_is_asked_for(dtype: str) -> None:
    x = example((3, 64)).astype(TENSOR_DTYPES[dtype])
    b = Builder()
    y = b.given(x)
    q = b.measure(y, "mxfp4")
    layout = Layout(native_numbers("mxfp4"), (3, 64), (1, 32))
    assert_equal(run(b.done(b.dequantize(q[:2], y, "mxfp4")), [x]), [native.fake_quantize(x, layout)])


def native_numbers(name: str) -> Any:
    from blockscale.numerics.scheme import numbers_named

    return numbers_named(name)


def test_a_size_of_minus_one_is_that_of_the_codes() -> None:
    b = Builder()
    x = b.input(3, 64, dynamic=(0, 1))
    y = b.dequantize(b.measure(x, "mxfp4")[:2], x, "mxfp4")
    assert list(y.producer().attributes["shape"].as_ints()) == [-1, -1]  # type: ignore[union-attr]
    model = b.done(y)
    for shape in ((3, 64), (5, 32)):
        a = example(shape, 3)
        layout = Layout(native_numbers("mxfp4"), shape, (1, 32))
        assert_equal(run(model, [a]), [native.fake_quantize(a, layout)])


# ------------------------------------------------------------------------------------------ as Quark


@pytest.mark.parametrize(("domain", "op_type"), [
    ("com.amd.quark", "MXQuantizeDequantize"), ("com.vai.quantize", "MXFixNeuron"),
])  # fmt: skip
@pytest.mark.parametrize("element", ["int8", "fp8_e4m3", "fp8_e5m2", "fp6_e2m3", "fp6_e3m2", "fp4_e2m1"])
@pytest.mark.parametrize("mode", [None, 0, 1, 2])
def test_the_operators_of_quark(domain: str, op_type: str, element: str, mode: int | None) -> None:
    x = np.where(np.isfinite(example((4, 32, 3))), example((4, 32, 3)), 0).astype(np.float32)
    rounding = {} if mode is None else {"rounding_mode": mode}
    b = Builder(domains=[domain])
    y = b.add(op_type, (b.given(x),), domain=domain, types=[(ir.DataType.FLOAT, x.shape)],
              element_dtype=element, axis=-2, block_size=16, **rounding)  # fmt: skip
    name = "mxint8" if element == "int8" else element
    blocks = np.ascontiguousarray(np.moveaxis(x, 1, -1)).reshape(-1, 16)
    wanted = dialects.quark(blocks, name, mode or 0)
    assert_equal(run(b.done(y), [x]), [np.moveaxis(wanted.reshape(4, 3, 32), -1, 1)])


# ------------------------------------------------------------------------------------------ standard ones

INTEGERS = (T.UINT8, T.INT8, T.INT16, T.UINT16, T.INT4, T.UINT4)
EXTREMES = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 1e38, -0.0, 0.5, 1.5, 2.5], np.float32)


def _model(nodes: list[Any], x: Array, outputs: int, constants: list[Any], opset: int) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", T.FLOAT, x.shape)],
        [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)], constants,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def assert_as_onnxruntime(model: onnx.ModelProto, x: Array) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert_equal(list(Runner(model).run({"x": x}).values()), session.run(None, {"x": x}))


INTEGER_CASES = [
    *(
        (opset, dtype, form)
        for opset in (13, 19)
        for dtype in (T.UINT8, T.INT8)
        for form in ("tensor", "channel")
    ),
    *((21, dtype, form) for dtype in INTEGERS for form in ("tensor", "channel", "blocked", "microsoft")),
    *((23, dtype, "blocked") for dtype in INTEGERS),
]


@pytest.mark.parametrize(("opset", "dtype", "form"), INTEGER_CASES)
def test_integers_of_quantize_linear_are_those_of_onnxruntime(opset: int, dtype: int, form: str) -> None:
    rng = np.random.default_rng(opset + dtype)
    x = example((6, 10), dtype)
    if form == "channel" and dtype in (T.INT4, T.UINT4):
        x = np.clip(np.nan_to_num(x, nan=0.0), -1e6, 1e6)  # there onnxruntime wraps
    else:
        x[0] = EXTREMES
    shape = {"tensor": (), "microsoft": (), "channel": (10,), "blocked": (6, 3)}[form]
    scale = (rng.random(shape) + 0.1).astype(np.float32)
    code = helper.tensor_dtype_to_np_dtype(dtype)
    limits = ml_dtypes.iinfo(code)  # type: ignore[no-untyped-call]
    zero = rng.integers(limits.min, limits.max, shape)
    settings = {"axis": 1} | ({"block_size": 4} if form == "blocked" else {})
    domain = "com.microsoft" if form == "microsoft" else ""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], domain=domain, **settings),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y0"], domain=domain, **settings),
    ]
    constants = [
        onnx.numpy_helper.from_array(scale, "s"),
        helper.make_tensor("z", dtype, shape, np.asarray(zero).reshape(-1).tolist()),
    ]
    assert_as_onnxruntime(_model(nodes, x, 1, constants, opset), x)


@pytest.mark.parametrize("dtype", [T.FLOAT8E4M3FN, T.FLOAT8E5M2])
@pytest.mark.parametrize("form", ["tensor", "blocked"])
def test_floats_of_quantize_linear_are_those_of_onnxruntime(dtype: int, form: str) -> None:
    x = example((4, 8), dtype)
    shape = (4, 2) if form == "blocked" else ()
    scale = np.full(shape, 0.375, np.float32)
    settings = {"axis": 1} | ({"block_size": 4} if form == "blocked" else {})
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **settings),
        helper.make_node("DequantizeLinear", ["q", "s"], ["y0"], **settings),
    ]
    constants = [
        onnx.numpy_helper.from_array(scale, "s"),
        helper.make_tensor("z", dtype, shape, [0.0] * scale.size),
    ]
    assert_as_onnxruntime(_model(nodes, x, 1, constants, 21), x)


def test_dynamic_quantize_linear_is_that_of_onnxruntime() -> None:
    x = np.where(np.isfinite(example((5, 40))), example((5, 40)), 1).astype(np.float32)
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y0", "y1", "y2"])
    model = _model([node], x, 3, [], 18)
    assert_as_onnxruntime(model, x)


@pytest.mark.parametrize("turns", [0, 1, 4])
def test_loops_are_those_of_onnxruntime(turns: int) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 18]>
    agraph (float[2, 3] x) => (float[2, 3] y, float[T, 2, 3] all, float[T] some)
    <int64 n = {TURNS}, bool go = {1}>
    {
        y, all, some = Loop (n, go, x) <
            body = step (int64 i, bool on, float[2, 3] s) => (bool still, float[2, 3] t, float[2, 3] u, float v) {
                still = Identity (on)
                t = Neg (s)
                u = Add (s, s)
                v = ReduceMax <keepdims = 0> (s)
            }
        >
    }
    """
    model = onnx.parser.parse_model(text.replace("TURNS", str(turns)))
    assert_as_onnxruntime(model, np.array([[1, 2, -3], [0.5, 4, -5]], np.float32))


# ------------------------------------------------------------------------------------------ where nodes are


def test_our_operators_run_in_bodies_and_in_functions() -> None:
    place = {"numbers": "mxfp4", "block": [1, 32]}
    info = [helper.make_tensor_value_info("y", T.FLOAT, None)]
    fake = helper.make_node("FakeQuantize", ["x"], ["y"], domain=DOMAIN, **place)
    same = helper.make_node("Identity", ["x"], ["y"])
    bodies = {
        "then_branch": helper.make_graph([fake], "then", [], info),
        "else_branch": helper.make_graph([same], "else", [], info),
    }
    function = helper.make_function(
        "mine", "twice", ["a"], ["c"], [
            helper.make_node("FakeQuantize", ["a"], ["b"], domain=DOMAIN, **place),
            helper.make_node("Add", ["b", "b"], ["c"]),
        ], [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("If", ["which"], ["y0"], **bodies), helper.make_node("twice", ["x"], ["y1"], domain="mine")],
        "g", [helper.make_tensor_value_info("which", T.BOOL, []), helper.make_tensor_value_info("x", T.FLOAT, [2, 64])],
        [onnx.ValueInfoProto(name="y0"), onnx.ValueInfoProto(name="y1")],
    )  # fmt: skip
    opsets = [helper.make_opsetid(name, version) for name, version in (("", 18), (DOMAIN, 1), ("mine", 1))]
    runner = Runner(helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=10))
    x = example((2, 64))
    wanted = native.fake_quantize(x, Layout(native_numbers("mxfp4"), (2, 64), (1, 32)))
    assert_equal(list(runner.run({"which": np.array(True), "x": x}).values()), [wanted, wanted + wanted])
    assert_equal([runner.run({"which": np.array(False), "x": x})["y0"]], [x])


def test_an_output_that_is_left_out_is_no_input() -> None:
    """onnx's evaluator would give the skipped output to the Clip that skips its minimum."""
    nodes = [
        helper.make_node("DynamicQuantize", ["x"], ["", "s"], domain=DOMAIN, numbers="mxint8", block=[1, 32]),
        helper.make_node("Clip", ["x", "", "top"], ["y0"]),
        helper.make_node("Identity", ["s"], ["y1"]),
    ]
    x = example((2, 64))
    model = _model(nodes, x, 2, [onnx.numpy_helper.from_array(np.float32(1), "top")], 18)
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    found = Runner(model).run({"x": x})
    assert equal(found["y0"], np.minimum(x, np.float32(1)))
    assert model.graph.node[0].output[0] == ""  # the given model is not changed


def test_models_from_files_with_external_data(tmp_path: Any) -> None:
    b = Builder()
    weight = example((64, 8), 5)
    model = b.done(b.call("MatMul", b.input(2, 64), b.constant(weight)))
    wanted = run(model, b.examples)
    path = tmp_path / "model.onnx"
    ir.save(model, path, external_data="weights.data")
    assert_equal(run(ir.load(path), b.examples), wanted)
    assert_equal(list(Runner(path).run({"x1": b.examples[0]}).values()), wanted)
    assert_equal(list(Runner(onnx.load(path)).run({"x1": b.examples[0]}).values()), wanted)


# ------------------------------------------------------------------------------------------ bad input


def _runner() -> Runner:
    b = Builder()
    x = b.input(4, 32, dynamic=(0,))
    return Runner(b.done(b.fake(x, "mxfp4")))


@pytest.mark.parametrize(("inputs", "error", "says"), [
    ({}, ArgumentError, "x1 too"),
    ({"x1": np.zeros((4, 32), np.float32), "z": np.zeros(1)}, UnknownNameError, "did you mean|allowed are x1"),
    ({"x1": np.zeros((4, 32))}, DtypeError, "float32"),
    ({"x1": [[1.0]]}, DtypeError, "list"),
    ({"x1": np.zeros((4, 33), np.float32)}, ShapeError, "x1_0×32"),
    ({"x1": np.zeros(32, np.float32)}, ShapeError, "x1_0×32"),
])  # fmt: skip
def test_wrong_inputs(inputs: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        _runner().run(inputs)


def test_one_name_is_one_size() -> None:
    b = Builder()
    x, y = b.input(4, dynamic=(0,)), b.input(4)
    y.shape = ir.Shape(["x1_0"])
    runner = Runner(b.done(b.call("Add", x, y)))
    with pytest.raises(ShapeError, match="x1_0 = 4"):
        runner.run({"x1": np.zeros(4, np.float32), "x2": np.zeros(1, np.float32)})


def test_what_a_kernel_refuses_is_its_own_error() -> None:
    b = Builder()
    x = b.input(4, 32)
    scale = b.constant(np.array([[-1.0]], np.float32))
    with pytest.raises(ScaleError, match="positive"):
        run(b.done(b.quantize(x, "int8", None, scale)), b.examples)
    b = Builder()
    x = b.input(4, 32)
    y = b.add(
        "FakeQuantize",
        (x,),
        domain=DOMAIN,
        types=[(ir.DataType.FLOAT, (4, 32))],
        numbers="mxfp5",
        block=[1, 32],
    )
    with pytest.raises(UnknownNameError, match="mxfp5"):
        run(b.done(y), b.examples)


def test_what_cannot_run_is_an_error_of_ours(tmp_path: Any) -> None:
    b = Builder(domains=["else"])
    x = b.input(4)
    unknown = b.done(b.add("Unknown", (x,), domain="else", types=[(ir.DataType.FLOAT, (4,))]))
    with pytest.raises(GraphError, match="Unknown"):
        Runner(unknown)
    with pytest.raises(FileError, match="nothing"):
        Runner(tmp_path / "nothing.onnx")
    with pytest.raises(DtypeError, match="int"):
        Runner(3)  # type: ignore[arg-type]
    b = Builder()
    bad = b.done(b.call("Reshape", b.input(4, dynamic=(0,)), b.ints([2, 2])))
    with pytest.raises(BlockscaleError, match="does not run"):
        run(bad, [np.zeros(5, np.float32)])
