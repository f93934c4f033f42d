"""Calibration of ONNX models through quantize_model: every source gives the same scales, and what is wrong is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import blockscale as bs
from blockscale.errors import CalibrationError
from blockscale.numerics.observers import METHODS, observer
from blockscale.numerics.scheme import scheme_named
from blockscale.runtime.calibration_data import random

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, seq, 32] x, float[batch, 1, 32] model/gate) => (float[batch, seq, 8] y) {
    m = Mul (x, model/gate) h = MatMul (m, W) r = Relu (h) y = MatMul (r, V)
}"""


def model() -> onnx.ModelProto:
    proto = onnx.parser.parse_model(TEXT.replace("model/gate", "gate"))
    generator = np.random.default_rng(0)
    for name, shape in (("W", (32, 64)), ("V", (64, 8))):
        proto.graph.initializer.append(
            numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32), name)
        )
    proto.graph.input[1].name = proto.graph.node[0].input[1] = "model/gate"  # exporters write such names
    return proto


def data() -> list[dict[str, Any]]:
    """Batches of different sizes."""
    generator = np.random.default_rng(1)
    shapes = [((n, 5 + n, 32), (n, 1, 32)) for n in (1, 2, 3)]
    names = ("x", "model/gate")
    return [
        {n: generator.standard_normal(s).astype(np.float32) for n, s in zip(names, sizes, strict=True)}
        for sizes in shapes
    ]


class Reader:
    def __init__(self) -> None:
        self.left = data()

    def get_next(self) -> Any:
        return self.left.pop(0) if self.left else None


def scales(calibration: Any, **more: Any) -> dict[str, float]:
    qm = bs.quantize_model(model(), "int8", calibration=calibration, stages=(), **more)
    tensors = {name: value.const_value for name, value in qm.model.graph.initializers.items()}
    return {name: float(t.numpy().reshape(())) for name, t in tensors.items() if name.endswith("scale")}


def _of_folders(folder: Path) -> Path:
    for number, batch in enumerate(data()):
        for name, array in batch.items():
            file = folder / name.replace("/", "_") / f"{number}.npy"
            file.parent.mkdir(exist_ok=True)
            np.save(file, array)
    return folder


def _of_npz(folder: Path) -> Path:
    for number, batch in enumerate(data()):
        np.savez(folder / f"{number}.npz", **batch)
    return folder


SOURCES: dict[str, Callable[[Path], Any]] = {
    "a list": lambda folder: data(),
    "a generator": lambda folder: iter(data()),
    "a reader": lambda folder: Reader(),
    "folders": _of_folders,
    "the path as text": lambda folder: str(_of_folders(folder)),
    "npz files": _of_npz,
}


@pytest.mark.parametrize("source", SOURCES)
def test_sources(source: str, tmp_path: Path) -> None:
    expected = scales(data())
    assert len(expected) == 2 and scales(SOURCES[source](tmp_path)) == expected


def test_one_batch_of_several_inputs_may_lie_in_files_of_their_names(tmp_path: Path) -> None:
    for name, array in data()[2].items():
        np.save(tmp_path / f"{name.replace('/', '_')}.npy", array)
    assert scales(tmp_path) == scales(data()[2:])


def test_random_data_is_asked_for() -> None:
    shapes = {"x": (1, 4, 32)}
    assert scales(random(3, shapes=shapes)) == scales(random(3, shapes=shapes))
    assert scales(random(3, shapes=shapes)) != scales(random(3, seed=1, shapes=shapes))
    with pytest.raises(CalibrationError, match=r"input 'x' .*: which sizes\? Say shapes="):
        scales(random(3))


@pytest.mark.parametrize("method", METHODS)
def test_methods(method: str) -> None:
    by_hand = observer(method, scheme_named("int8,dynamic=false"), name="m")
    for batch in data():
        by_hand.update(batch["x"] * batch["model/gate"])
    assert scales(data(), method=method)["m_scale"] == float(by_hand.finish().scales.reshape(()))


def test_nothing_is_read_where_nothing_is_static() -> None:
    def never() -> Iterator[Any]:
        raise AssertionError("MX needs no data")
        yield

    for recipe in ("mxfp4", "mxint8-all", "int8-dynamic", "int8-float"):
        bs.quantize_model(model(), recipe, calibration=never())
    bs.quantize_model(model(), "mxint8", compat="quark", calibration=never())


def _without(name: str) -> list[dict[str, Any]]:
    return [{key: array for key, array in batch.items() if key != name} for batch in data()]


def _read(reader: Reader) -> Reader:
    scales(reader)
    return reader


FIRST = data()[0]
WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "none": (lambda f: None, "take static scales, which come from data"),
    "an input less": (
        lambda f: _without("model/gate"), r"batch 1 lacks input 'model/gate' \(float32 \[batch, 1, 32\]\)",
    ),
    "an input more": (lambda f: [FIRST | {"z": FIRST["x"]}], "the model has no input 'z', only x, model/gate"),
    "float64": (
        lambda f: [{k: v.astype(np.float64) for k, v in FIRST.items()}],
        r"input 'x' is float64: the model takes float32; cast it, x\.astype\('float32'\)",
    ),
    "a size": (
        lambda f: [FIRST | {"x": FIRST["x"][..., :8]}],
        r"shape \[1, 6, 8\]: the model takes float32 \[batch, seq, 32\]",
    ),
    "one array of two": (lambda f: [FIRST["x"]], "give a dict of numpy arrays by input name"),
    "empty": (lambda f: [], "holds no batch"),
    "a reader twice": (lambda f: _read(Reader()), "holds no batch"),
    "an empty folder": (lambda f: f, r"holds no \.npy and no \.npz file"),
    "no folder": (lambda f: f / "none", "there is no such folder"),
    "a batch less": (
        lambda f: ((_of_folders(f) / "model_gate" / "1.npy").unlink(), f)[1],
        "batch 1.npy lacks input 'model/gate'; each input has a folder of its own",
    ),
    "both kinds": (lambda f: _of_npz(_of_folders(f)), "which are meant"),
    "a broken file": (lambda f: ((_of_npz(f) / "1.npz").write_bytes(b"PK??"), f)[1], "1.npz' cannot be read"),
    "objects": (
        lambda f: (_of_folders(f), np.save(f / "x" / "0.npy", np.array([None]), allow_pickle=True), f)[2],
        "0.npy' cannot be read",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(case: str, tmp_path: Path) -> None:
    source, message = WRONG[case]
    with pytest.raises(CalibrationError, match=message):
        scales(source(tmp_path))
