"""quantize_model on ONNX models: the bits of the fake-quantized model, from codes, in files that travel."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

import blockscale as bs
from blockscale.errors import ArgumentError, DtypeError, FileError
from blockscale.runtime.onnx_reference import Runner
from blockscale.runtime.ort import Session
from blockscale.targets import onnx as target
from models.onnx_nets import CASES, random


def quantized(name: str, model: Any = None, **more: Any) -> Any:
    net = CASES[name]
    return bs.quantize_model(
        net.proto() if model is None else model, net.recipe, calibration=[net.inputs], **more
    )


def output(model: Any, inputs: Any) -> Any:
    return next(iter(Session(model).run(inputs).values()))


@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_of_the_fake_quantized_model(name: str) -> None:
    net = CASES[name]
    proto = net.proto()
    before = proto.SerializeToString()
    qm = quantized(name, proto)
    fake = bs.fake_quantize_model(proto, net.recipe, calibration=[net.inputs])
    for inputs in filter(None, (net.inputs, net.other)):
        np.testing.assert_array_equal(qm(inputs), output(fake, inputs))
    assert proto.SerializeToString() == before
    onnx.checker.check_model(ir.to_proto(qm.model))
    assert qm.report.bytes_after < 0.4 * qm.report.bytes_before


def test_weights_are_codes() -> None:
    qm = quantized("language model")
    floats = {name for name, value in qm.model.graph.initializers.items() if value.dtype == ir.DataType.FLOAT}
    assert floats == {"G", "B", "UB"}
    held = sum(value.const_value.nbytes for value in qm.model.graph.initializers.values())
    assert qm.report.bytes_after == held < 0.2 * qm.report.bytes_before


@pytest.mark.parametrize("form", ["proto", "ir", "path", "text"])
def test_what_may_be_given(form: str, tmp_path: Path) -> None:
    proto = CASES["language model"].proto()
    path = tmp_path / "float.onnx"
    onnx.save(proto, path)
    given = {"proto": proto, "ir": ir.from_proto(proto), "path": path, "text": str(path)}[form]
    qm = quantized("language model", given)
    np.testing.assert_array_equal(qm(CASES["language model"].inputs), quantized("language model")(**_ids()))
    fake = bs.fake_quantize_model(given, "mxfp4")
    assert isinstance(fake, onnx.ModelProto if form == "proto" else ir.Model)
    assert isinstance(bs.optimize(given), onnx.ModelProto if form == "proto" else ir.Model)


def _ids() -> dict[str, Any]:
    return dict(CASES["language model"].inputs)


def test_calls() -> None:
    qm = quantized("language model")
    (ids,) = _ids().values()
    expected = qm(ids)
    assert expected.shape == (2, 5, 50)
    np.testing.assert_array_equal(qm(ids=ids), expected)
    np.testing.assert_array_equal(qm({"ids": ids}), expected)
    with pytest.raises(ArgumentError, match="inputs = '2 arrays': the model takes ids"):
        qm(ids, ids)
    with pytest.raises(ArgumentError, match="id"):
        qm(id=ids)
    with pytest.raises(DtypeError, match="int64"):
        qm(ids.astype(np.float32))


@pytest.mark.parametrize("name", ["language model", "static scales", "tensor scales", "bodies"])
def test_saved_and_loaded(name: str, tmp_path: Path) -> None:
    qm, inputs = quantized(name), CASES[name].inputs
    qm.save(tmp_path / "model.onnx")
    loaded = bs.load(tmp_path / "model.onnx")
    np.testing.assert_array_equal(loaded(inputs), qm(inputs))
    assert loaded.report == qm.report
    proto = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(proto)
    assert proto.ir_version <= 13
    (report,) = [
        json.loads(entry.value) for entry in proto.metadata_props if entry.key == "blockscale_report"
    ]
    assert report == qm.report.to_dict()
    np.testing.assert_array_equal(output(proto, inputs), qm(inputs))
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    for copied in (copy.deepcopy(qm), pickle.loads(pickle.dumps(qm))):
        np.testing.assert_array_equal(copied(inputs), qm(inputs))
        assert copied.report == qm.report


def test_large_weights_lie_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    qm, inputs = quantized("language model"), CASES["language model"].inputs
    expected, path = qm(inputs), tmp_path / "model.onnx"
    monkeypatch.setattr(target, "_LARGEST", 1000)
    qm.save(path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    assert path.stat().st_size < 20_000 < path.stat().st_size + (tmp_path / "model.onnx.data").stat().st_size
    loaded = bs.load(path)
    np.testing.assert_array_equal(loaded(inputs), expected)
    onnx.checker.check_model(str(path))
    loaded.save(path)  # over the file whose data it reads
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "model.onnx.2.data"]
    np.testing.assert_array_equal(bs.load(path)(inputs), expected)
    again = tmp_path / "elsewhere"
    again.mkdir()
    for file in ("model.onnx", "model.onnx.2.data"):
        (tmp_path / file).rename(again / file)
    np.testing.assert_array_equal(bs.load(again / "model.onnx")(inputs), expected)
    (again / "model.onnx.2.data").unlink()
    with pytest.raises(FileError, match=r"model.onnx: there is no file .*model\.onnx\.2\.data"):
        bs.load(again / "model.onnx")


@pytest.mark.parametrize("large", [False, True])
def test_files_are_whole(large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    qm, inputs = quantized("language model"), CASES["language model"].inputs
    if large:
        monkeypatch.setattr(target, "_LARGEST", 1000)
    qm.save(tmp_path / "model.onnx")
    files = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def dies(path: Path, data: bytes) -> int:
        with open(path, "wb") as file:
            file.write(data[:100])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "write_bytes", dies)
        qm.save(tmp_path / "model.onnx")
    assert {name: (tmp_path / name).read_bytes() for name in files} == files
    np.testing.assert_array_equal(bs.load(tmp_path / "model.onnx")(inputs), qm(inputs))
    with pytest.raises(ArgumentError, match=r"ends in \.onnx"):
        qm.save(tmp_path / "model.pt2")
    with pytest.raises(FileError, match="cannot be written"):
        qm.save(tmp_path / "nowhere" / "model.onnx")


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    whole = CASES["language model"].proto().SerializeToString()
    for data in (b"hello", whole[: len(whole) // 2], b""):
        path.write_bytes(data)
        with pytest.raises(FileError, match=r"model\.onnx: not an ONNX model that can be read"):
            bs.quantize_model(path, "mxfp4")
    path.write_bytes(whole)
    with pytest.raises(FileError, match=r"not written by blockscale; quantize_model takes it"):
        bs.load(path)
    with pytest.raises(ArgumentError, match="a file that exists"):
        bs.quantize_model(tmp_path / "no.onnx", "mxfp4")


@pytest.mark.parametrize("version", [3, 8])
def test_weights_that_are_inputs(version: int) -> None:
    """Old files had no other way to say them; in newer ones it means that another may be given."""
    proto = CASES["attention"].proto()
    proto.ir_version = version
    for name in ("Q", "K"):
        proto.graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (32, 32)))
    rows = bs.quantize_model(proto, "mxfp8-all").report.tensors
    weights = [row for row in rows if row["role"] == "weight"]
    assert len(weights) == (2 if version == 3 else 0)
    assert [value.name for value in proto.graph.input] == ["x", "Q", "K"]


def test_constants_that_are_nodes() -> None:
    """A Constant in front of all, and two new nodes that must stand before what reads it."""
    values = ", ".join(map(str, random(32, 32).ravel()))
    constant = f"W = Constant <value = float[32, 32] {{{values}}}> ()"
    body = f"g (float[2, 32] x) => (float[2, 32] y) {{ {constant} y = MatMul (x, W) }}"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {body}')
    x = random(2, 32)
    fake = bs.fake_quantize_model(proto, "mxfp4")
    onnx.checker.check_model(fake)
    np.testing.assert_array_equal(bs.quantize_model(proto, "mxfp4")(x), output(fake, {"x": x}))


@pytest.mark.parametrize("form", ["none", "tanh"])
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_gelu_is_that_of_its_function(form: str, dtype: str) -> None:
    body = f'g ({dtype}[n] x) => ({dtype}[n] y) {{ y = Gelu <approximate = "{form}"> (x) }}'
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 20]> {body}')
    x = np.concatenate([random(2000) * 3, [0.0, -0.0, np.inf, -np.inf, np.nan]])
    x = x.astype(np.float32 if dtype == "float" else np.float16)
    with np.errstate(invalid="ignore"):
        (expected,) = ReferenceEvaluator(onnx.shape_inference.infer_shapes(proto)).run(None, {"x": x})
    np.testing.assert_array_equal(Runner(proto).run({"x": x})["y"], expected)


def test_missing_data_is_told_before_work_begins(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(
        CASES["language model"].proto(),
        path,
        save_as_external_data=True,
        location="weights",
        size_threshold=0,
    )
    assert quantized("language model", path)(_ids()).shape == (2, 5, 50)
    (tmp_path / "weights").unlink()
    with pytest.raises(FileError, match=r"model\.onnx: there is no file .*weights"):
        bs.quantize_model(path, "mxfp4")


def test_operators_of_others_stay() -> None:
    body = "g (float[2, 32] x) => (float[2, 32] y) { a = MatMul (x, W) b = other.Thing <n = 3> (a) y = MatMul (b, W) }"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18, "other" : 1]> {body}')
    proto.graph.initializer.append(onnx.numpy_helper.from_array(random(32, 32), "W"))
    qm = bs.quantize_model(proto, "mxfp4")
    (node,) = [node for node in qm.model.graph if node.domain == "other"]
    assert node.op_type == "Thing" and node.attributes["n"].as_int() == 3
    left = [entry for entry in qm.report.entries if "Thing" in entry.get("left", "")]
    assert left and left[0]["stage"] == "annotate"


def test_compare() -> None:
    net = CASES["language model"]
    qm = quantized("language model")
    found = bs.compare(net.proto(), qm, [net.inputs, net.other])
    rows = {row.tensor: row for row in found.rows}
    assert {"u", "d", "y"} <= rows.keys() and rows["y"].is_output
    assert 5 < rows["y"].sqnr < 60
    assert bs.compare(bs.fake_quantize_model(net.proto(), "mxfp4"), qm, [net.inputs]).equal


def test_torch_is_not_imported(tmp_path: Path) -> None:
    onnx.save(CASES["static scales"].proto(), tmp_path / "float.onnx")
    code = f"""
import sys, numpy as np, blockscale as bs
ids = np.ones((2, 5), np.int64)
qm = bs.quantize_model({str(tmp_path / "float.onnx")!r}, "int8", calibration=[dict(ids=ids)])
qm.save({str(tmp_path / "model.onnx")!r})
bs.compare(qm, bs.load({str(tmp_path / "model.onnx")!r}), [dict(ids=ids)])
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("large", [False, True])
def test_what_is_saved_needs_no_file_of_the_model_it_was_made_from(
    large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, given, made = CASES["language model"], tmp_path / "given", tmp_path / "made"
    given.mkdir()
    made.mkdir()
    onnx.save(net.proto(), given / "m.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    qm = quantized("language model", given / "m.onnx")
    expected, copied = qm(net.inputs), pickle.dumps(qm)
    if large:
        monkeypatch.setattr(target, "_LARGEST", 1000)
    qm.save(made / "m.onnx")
    np.testing.assert_array_equal(qm(net.inputs), expected)
    (given / "weights").unlink()
    onnx.checker.check_model(str(made / "m.onnx"))
    np.testing.assert_array_equal(bs.load(made / "m.onnx")(net.inputs), expected)
    np.testing.assert_array_equal(pickle.loads(copied)(net.inputs), expected)
