"""compat="quark" puts the same quantizes on the same tensors as AMD Quark's own quantizer, and gives its bits."""

from __future__ import annotations

import copy
import gc
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

import blockscale as bs
from blockscale import Rule
from blockscale.errors import RecipeError
from blockscale.graph.onnx_quantizers import quark_attributes
from blockscale.numerics.scheme import numbers_named
from blockscale.runtime.onnx_reference import Runner
from blockscale.runtime.ort import Session
from peers import runners
from peers.quark_models import MODELS, cnn, inputs_of, tangle

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]

PRESETS = {
    "mxint8": "MXINT8", "mxfp8_e4m3": "MXFP8E4M3", "mxfp8_e5m2": "MXFP8E5M2", "mxfp6_e2m3": "MXFP6E2M3",
    "mxfp6_e3m2": "MXFP6E3M2", "mxfp4": "MXFP4E2M1",
}  # fmt: skip
Placement = dict[str, tuple[str, int, int, int]]  # tensor → element, axis, block, rounding mode


class Reader:
    """Quark wants data though MX needs none."""

    def __init__(self, batch: dict[str, Any]) -> None:
        self.batches = [batch]

    def get_next(self) -> Any:
        return self.batches.pop() if self.batches else None

    def reset_iter(self) -> None:
        pass


@pytest.fixture
def quark(need: Any) -> Any:
    need("onnxruntime")
    with runners.quiet():
        return need("quark.onnx")


def theirs(
    quark: Any, model: onnx.ModelProto, name: str, preset: str, tmp_path: Any, *, options: Any = (), MX: Any = (),
    **settings: Any,
) -> Any:  # fmt: skip
    """What Quark makes of the model; its own simplifications are off, or the tensors would be others."""
    presets = __import__("quark.onnx.quantization.config.custom_config", fromlist=["x"])
    config = copy.deepcopy(getattr(presets, f"{PRESETS[preset]}_CONFIG"))
    rewrites = ("SimplifyModel", "ConvertSplitToSlice", "ConvertReduceMeanToGlobalAvgPool", "FoldBatchNorm")
    fusions = ("FuseGelu", "FuseLayerNorm", "FuseInstanceNorm", "FuseL2Norm")
    config.extra_options |= dict.fromkeys((*rewrites, *fusions), False)
    config.extra_options |= dict(options)
    config.extra_options["MXAttributes"] |= dict(MX)
    config.optimize_model = config.include_cle = False
    for key, value in settings.items():
        setattr(config, key, value)
    onnx.save(model, tmp_path / "float.onnx")
    api = __import__("quark.onnx.quantization.config", fromlist=["x"])
    with runners.quiet():
        quantizer = quark.ModelQuantizer(api.Config(global_quant_config=config))
        made = quantizer.quantize_model(str(tmp_path / "float.onnx"), None, Reader(inputs_of(name)))
        gc.collect()  # it forgets temporary folders, and Python warns of each
    return made


def ranks_of(model: onnx.ModelProto) -> dict[str, list[int]]:
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = (*graph.input, *graph.value_info, *graph.output)
    found = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values}
    return found | {weight.name: list(weight.dims) for weight in graph.initializer}


def placement_of_quark(made: onnx.ModelProto, model: onnx.ModelProto) -> Placement:
    """By the tensor of the float model; a single number is left out, which the operator leaves as it is."""
    shapes, found = ranks_of(model), Placement()
    for node in made.graph.node:
        if node.op_type != "MXQuantizeDequantize":
            continue
        a = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        tensor = node.input[0].removesuffix("_QuantizeLinear_Input")
        shape = shapes[tensor]
        if shape.count(1) == len(shape):
            continue
        axis = a["axis"] % len(shape) if len(shape) > 1 else 0
        found[tensor] = (a["element_dtype"].decode(), axis, a["block_size"], a["rounding_mode"])
    return found


def placement_of_ours(made: onnx.ModelProto) -> Placement:
    found = Placement()
    outputs = {value.name for value in made.graph.output}
    for node in ir.from_proto(made).graph:
        if (node.domain, node.op_type) != ("blockscale", "FakeQuantize"):
            continue
        block = node.attributes["block"].as_ints()
        said = quark_attributes(numbers_named(node.attributes["numbers"].as_string()), block)
        assert isinstance(said, dict), said
        name = str(node.outputs[0].name) if node.outputs[0].name in outputs else str(node.inputs[0].name)
        found[name] = (said["element_dtype"], said["axis"], said["block_size"], said["rounding_mode"])
    return found


def same(quark: Any, model: onnx.ModelProto, name: str, recipe: Any, made: Any) -> None:
    ours = bs.fake_quantize_model(model, recipe, compat="quark")
    expected = placement_of_quark(made, model)
    assert expected and placement_of_ours(ours) == expected
    runs = [Runner(one).run(inputs_of(name)) for one in (ours, made)]
    qm = bs.quantize_model(model, recipe, compat="quark")
    qm.runner = "reference"
    quantized = qm(inputs_of(name))
    for output, last in zip(runs[1], quantized if isinstance(quantized, tuple) else [quantized], strict=True):
        np.testing.assert_array_equal(runs[0][output], runs[1][output])
        np.testing.assert_array_equal(last, runs[1][output])


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", MODELS)
def test_placement_and_bits(name: str, preset: str, quark: Any, tmp_path: Any) -> None:
    model = MODELS[name]()
    same(quark, model, name, preset, theirs(quark, model, name, preset, tmp_path))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", MODELS)
def test_their_models_run_on_our_library(name: str, preset: str, quark: Any, tmp_path: Any) -> None:
    """And ours, with their names, on theirs."""
    model = MODELS[name]()
    made = theirs(quark, model, name, preset, tmp_path)
    bs.quantize_model(model, preset, compat="quark").save(tmp_path / "ours.onnx")
    for one in (made, onnx.load(tmp_path / "ours.onnx")):
        expected = on_their_library(one, inputs_of(name))
        for output, found in Session(one, optimize="none").run(inputs_of(name)).items():
            np.testing.assert_array_equal(found, expected[output])


def on_their_library(model: onnx.ModelProto, inputs: dict[str, Any]) -> dict[str, Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with runners.quiet():
        options.register_custom_ops_library(runners._quark_library())
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


@pytest.mark.parametrize("seed", range(40))
def test_the_order_of_nodes_decides_as_it_does_there(seed: int, quark: Any, tmp_path: Any) -> None:
    model = tangle(seed)
    made = theirs(quark, model, "tangled", "mxint8", tmp_path)
    expected = placement_of_quark(made, model)
    if not expected:
        with pytest.raises(RecipeError, match="no tensor"):
            bs.fake_quantize_model(model, "mxint8", compat="quark", prepare="none")
        return
    ours = bs.fake_quantize_model(model, "mxint8", compat="quark", prepare="none")
    assert placement_of_ours(ours) == expected


# What is set beside → how Quark says it, and a recipe of ours.
SETTINGS: dict[str, tuple[dict[str, Any], Any]] = {
    "a node": ({"nodes_to_exclude": ["Conv_c2"]}, [Rule("float", name="Conv_c2"), Rule("mxint8")]),
    "a pattern": ({"nodes_to_exclude": ["^Conv.*"]}, [Rule("float", name="re:Conv.*"), Rule("mxint8")]),
    "a type": (
        {"op_types_to_quantize": ["Conv", "Gemm"]}, [Rule("mxint8", op_type=("Conv", "Gemm"))],
    ),
    "a part": (
        {"subgraphs_to_exclude": [(["Relu_r1"], ["Mul_m1"])]},
        [Rule("float", between=("Relu_r1", "Mul_m1")), Rule("mxint8")],
    ),
    "weights": ({"options": {"WeightsOnly": True}}, "mxint8-float"),
    "no biases": ({"options": {"QuantizeBias": False}}, [Rule("float", role="bias"), Rule("mxint8")]),
    "blocks": ({"MX": {"block_size": 16}}, [Rule("mxint8", block=16)]),
    "rounding": ({"MX": {"rounding_mode": 0}}, [Rule("mxint8", rounding="half_away")]),
}  # fmt: skip


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_of_theirs_are_rules_of_ours(case: str, quark: Any, tmp_path: Any) -> None:
    given, recipe = dict(SETTINGS[case][0]), SETTINGS[case][1]
    model = cnn()
    same(quark, model, "cnn", recipe, theirs(quark, model, "cnn", "mxint8", tmp_path, **given))
