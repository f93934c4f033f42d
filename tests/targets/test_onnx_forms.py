"""The three forms of a quantized model: the same bits, whoever runs them, and packed weights in all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

import blockscale as bs
from blockscale.errors import CombinationError, GraphError, UnknownNameError
from blockscale.runtime.ort import Session
from forms.one_node import on_onnxruntime, same
from models.onnx_nets import CASES

RECIPES = ("mxfp4", "mxfp6-all", "mxfp8-mxint8", "mxint8-all", "nvfp4", "int8-all", "bfp16")
FLOAT_NETS = {name: net for name, net in CASES.items() if name != "an old opset"}


def quantized(name: str, recipe: str, **more: Any) -> Any:
    net = CASES[name]
    return bs.quantize_model(net.proto(), recipe, calibration=[net.inputs], **more)


def possible(name: str, recipe: str) -> bool:
    """Values in bodies cannot be calibrated."""
    return not (name == "bodies" and recipe.startswith("int8"))


def outputs(model: Any, inputs: Any) -> list[Any]:
    """With nothing optimized: then products have the same operands in the same order."""
    return list(Session(model, optimize="none").run(inputs).values())


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", FLOAT_NETS)
def test_forms_have_the_same_bits(name: str, recipe: str, tmp_path: Path) -> None:
    if not possible(name, recipe):
        return
    net, qm = CASES[name], quantized(name, recipe)
    for inputs in filter(None, (net.inputs, net.other)):
        expected = outputs(qm.model, inputs)
        qm.save(tmp_path / "portable.onnx", "portable")
        portable = onnx.load(tmp_path / "portable.onnx")
        for found, want in zip(on_onnxruntime(portable, dict(inputs)), expected, strict=True):
            same(found, want)
        if name != "bodies" or recipe == "mxfp8-mxint8":  # constants in bodies are those outside of them
            qm.save(tmp_path / "native.onnx", "native", runtime="onnxruntime")
            native = onnx.load(tmp_path / "native.onnx")
            for found, want in zip(on_onnxruntime(native, dict(inputs)), expected, strict=True):
                same(found, want)


@pytest.mark.parametrize("form", ["custom", "portable", "native"])
@pytest.mark.parametrize("name", ["language model", "convolutions"])
def test_saved_and_loaded(name: str, form: str, tmp_path: Path) -> None:
    qm, inputs = quantized(name, "mxfp4"), CASES[name].inputs
    qm.save(tmp_path / "model.onnx", form)
    onnx.checker.check_model(tmp_path / "model.onnx")
    loaded = bs.load(tmp_path / "model.onnx")
    assert loaded.report == qm.report
    qm.runner = loaded.runner = "reference"
    np.testing.assert_array_equal(loaded(inputs), qm(inputs))


def test_native_types_are_those_of_onnx(tmp_path: Path) -> None:
    qm = quantized("language model", "mxfp4-float")
    qm.save(tmp_path / "model.onnx", "native")
    proto = onnx.load(tmp_path / "model.onnx")
    types = {one.data_type for one in proto.graph.initializer}
    assert {onnx.TensorProto.FLOAT4E2M1, onnx.TensorProto.FLOAT8E8M0} <= types
    (found,) = ReferenceEvaluator(proto).run(None, dict(CASES["language model"].inputs))
    qm.runner = "reference"
    np.testing.assert_array_equal(found, qm(CASES["language model"].inputs))
    loaded = bs.load(tmp_path / "model.onnx")
    with pytest.raises(GraphError, match=r"onnxruntime .* cannot load it"):
        loaded(CASES["language model"].inputs)
    with pytest.raises(UnknownNameError, match="onnxruntime, reference"):
        loaded.runner = "torch"


@pytest.mark.parametrize(("form", "most"), [("custom", 0.14), ("portable", 0.27), ("native", 0.14)])
def test_weights_are_packed(form: str, most: float, tmp_path: Path) -> None:
    """Those of a wide layer, so that it is they that are counted."""
    weight = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[n, 512] x) => (float[n, 512] y) '
        "{ h = MatMul (x, W) y = MatMul (h, W) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "W"))
    qm = bs.quantize_model(model, bs.Recipe([bs.Rule("mxfp4", use="linear", role="weight")]))
    qm.save(tmp_path / "model.onnx", form)
    assert (tmp_path / "model.onnx").stat().st_size < most * weight.nbytes


def test_portable_files_need_no_library(tmp_path: Path) -> None:
    qm, inputs = quantized("convolutions", "mxfp6"), CASES["convolutions"].inputs
    qm.save(tmp_path / "custom.onnx")
    qm.save(tmp_path / "portable.onnx", "portable")
    with pytest.raises(Exception, match="blockscale"):
        ort.InferenceSession(tmp_path / "custom.onnx", providers=["CPUExecutionProvider"])
    session = ort.InferenceSession(tmp_path / "portable.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, dict(inputs))[0], qm(inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("recipe", ["mxfp4", "mxint8", "mxfp8_e5m2", "bfp16"])
def test_names_of_quark(recipe: str, tmp_path: Path) -> None:
    qm, inputs = quantized("convolutions", recipe, compat="quark"), CASES["convolutions"].inputs
    qm.save(tmp_path / "quark.onnx")
    proto = onnx.load(tmp_path / "quark.onnx")
    domains = {node.domain for node in proto.graph.node}
    assert "com.amd.quark" in domains and "blockscale" not in domains
    expected = outputs(qm.model, inputs)
    for found, want in zip(outputs(proto, inputs), expected, strict=True):
        same(found, want)
    loaded = bs.load(tmp_path / "quark.onnx")
    assert loaded.compat == "quark"
    loaded.save(tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "quark.onnx").read_bytes()
    qm.save(tmp_path / "portable.onnx", "portable")
    for found, want in zip(
        on_onnxruntime(onnx.load(tmp_path / "portable.onnx"), dict(inputs)), expected, strict=True
    ):
        same(found, want)


def test_other_numbers_have_no_names_of_quark(tmp_path: Path) -> None:
    qm = quantized("convolutions", "mxfp4")
    with pytest.raises(CombinationError, match="AMD Quark's custom form cannot hold it"):
        qm.save(tmp_path / "model.onnx", compat="quark")
    assert not list(tmp_path.iterdir())


def test_fused_models_have_forms_too(tmp_path: Path) -> None:
    """What `stages` fused is taken apart again: codes that move are packed bytes in every form but the native."""
    from blockscale.passes.pipeline import OPTIMIZE

    qm, inputs = quantized("language model", "mxfp4", stages=OPTIMIZE), CASES["language model"].inputs
    qm.save(tmp_path / "portable.onnx", "portable")
    expected = outputs(qm.model, inputs)
    for found, want in zip(
        on_onnxruntime(onnx.load(tmp_path / "portable.onnx"), dict(inputs)), expected, strict=True
    ):
        same(found, want)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"form": "fast"}, UnknownNameError, "custom, portable, native"),
        ({"runtime": "onnx"}, CombinationError, "only the native form"),
        ({"form": "native", "runtime": "tensorrt"}, UnknownNameError, "onnx, onnxruntime"),
        (
            {"form": "portable", "compat": "quark"},
            CombinationError,
            "names of operators are of the custom form",
        ),
        ({"compat": "nobody"}, UnknownNameError, "quark"),
    ],
)
def test_what_is_refused(
    arguments: dict[str, Any], error: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=said):
        quantized("convolutions", "mxfp4").save(tmp_path / "model.onnx", **arguments)
    assert not list(tmp_path.iterdir())


def test_an_opset_that_is_too_old_is_brought_up(tmp_path: Path) -> None:
    qm, inputs = quantized("an old opset", "mxfp4"), CASES["an old opset"].inputs
    for form, least in (("portable", 18), ("native", 24)):
        qm.save(tmp_path / "model.onnx", form)
        model = bs.load(tmp_path / "model.onnx")
        assert model.model.opset_imports[""] >= least
        model.runner = qm.runner = "reference"
        np.testing.assert_array_equal(model(inputs), qm(inputs))


def test_the_model_itself_stays(tmp_path: Path) -> None:
    qm = quantized("language model", "mxfp4")
    before = ir.to_proto(qm.model).SerializeToString(deterministic=True)
    for form in ("custom", "portable", "native"):
        qm.save(tmp_path / "model.onnx", form)
    assert ir.to_proto(qm.model).SerializeToString(deterministic=True) == before
