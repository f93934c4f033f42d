"""What is no model, is one that cannot be quantized, or is one with odd tensors: refused in words, or right."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import blockscale as bs
from blockscale import Rule
from blockscale.errors import ArgumentError, CombinationError, FileError, RecipeError
from blockscale.runtime.onnx_reference import Runner

F = np.float32
W = np.random.default_rng(0).standard_normal((64, 64)).astype(F)
X = np.random.default_rng(1).standard_normal((3, 64)).astype(F)


def model(text: str, opset: int = 17, domains: str = "", **weights: Any) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}{domains}]> {text}')
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), k) for k, v in weights.items())
    return proto


def product() -> onnx.ModelProto:
    return model("g (float[N, 64] x) => (float[N, 64] y) { y = MatMul (x, W) }", W=W)


def changed(change: Callable[[onnx.ModelProto], Any]) -> onnx.ModelProto:
    proto = product()
    change(proto)
    return proto


# --------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("data", ["half", "text", "empty", "a byte", "no graph"])
@pytest.mark.parametrize("call", [lambda path: bs.quantize_model(path, "mxfp8"), bs.load])
def test_files_that_are_no_models(data: str, call: Any, tmp_path: Path) -> None:
    whole = product().SerializeToString()
    bytes_of = {
        "half": whole[: len(whole) // 2], "text": b"hello world\n", "empty": b"", "a byte": b"\n",
        "no graph": onnx.ModelProto(ir_version=8).SerializeToString(),
    }  # fmt: skip
    path = tmp_path / "model.onnx"
    path.write_bytes(bytes_of[data])
    with pytest.raises(FileError, match=r"model\.onnx: not an ONNX model that can be read"):
        call(path)


def test_folders_and_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder.onnx").mkdir()
    for name in ("folder.onnx", "no.onnx"):
        with pytest.raises(ArgumentError, match="a file that exists"):
            bs.quantize_model(tmp_path / name, "mxfp8")


def external(folder: Path, location: str, **entries: Any) -> Path:
    """A model whose weight is said to lie there."""
    proto = product()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in ({"location": location, "offset": 0, "length": W.nbytes} | entries).items():
        tensor.external_data.add(key=key, value=str(value))
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data(tmp_path: Path) -> None:
    data = tmp_path / "here.bin"
    data.write_bytes(W.tobytes())
    expected = bs.quantize_model(product(), "mxfp8")(X)
    path = external(tmp_path, "here.bin")
    np.testing.assert_array_equal(bs.quantize_model(path, "mxfp8")(X), expected)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"length": 8}, "has 8 bytes in .*here.bin, and its type and shape take 16384"),
        ({"offset": 4}, "bytes 4 to 16388 of .*here.bin, which has 16384: the file is cut off"),
        ({"offset": -4}, "has offset '-4' in its file"),
        ({"length": "x"}, "has length 'x' in its file"),
    ]
    for entries, message in wrong:
        with pytest.raises(FileError, match=rf"model\.onnx: weight 'W' .*{message}"):
            bs.quantize_model(external(tmp_path, "here.bin", **entries), "mxfp8")
    os.truncate(data, 100)
    with pytest.raises(FileError, match="which has 100: the file is cut off, or of another model"):
        bs.quantize_model(external(tmp_path, "here.bin"), "mxfp8")
    data.unlink()
    with pytest.raises(FileError, match=r"model\.onnx: there is no file .*here\.bin, which has weight 'W'"):
        bs.quantize_model(external(tmp_path, "here.bin"), "mxfp8")


@pytest.mark.parametrize("way", ["above", "absolute", "there and back", "link"])
def test_external_data_never_lies_elsewhere(way: str, tmp_path: Path) -> None:
    secret, folder = tmp_path / "secret.bin", tmp_path / "models"
    secret.write_bytes(W.tobytes())
    folder.mkdir()
    (folder / "link.bin").symlink_to(secret)
    location = {
        "above": "../secret.bin", "absolute": str(secret), "there and back": "x/../../secret.bin",
        "link": "link.bin",
    }[way]  # fmt: skip
    with pytest.raises(FileError, match="which is outside of the model's folder"):
        bs.quantize_model(external(folder, location), "mxfp8")


def test_files_that_vanish_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "here.bin").write_bytes(W.tobytes())
    path = external(tmp_path, "here.bin")
    qm = bs.quantize_model(path, "mxfp8", stages=())
    (tmp_path / "here.bin").unlink()
    with pytest.raises(FileError, match=r"weight 'W' .*here\.bin\) cannot be read|cannot be written"):
        qm.save(tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_the_output_may_be_the_input(tmp_path: Path) -> None:
    (tmp_path / "here.bin").write_bytes(W.tobytes())
    expected = bs.quantize_model(product(), "mxfp8")(X)
    for path in (external(tmp_path, "here.bin"), tmp_path / "plain.onnx"):
        if path.name == "plain.onnx":
            onnx.save(product(), path)
        qm = bs.quantize_model(path, "mxfp8")
        qm.save(path)
        np.testing.assert_array_equal(bs.load(path)(X), expected)
        np.testing.assert_array_equal(qm(X), expected)


# --------------------------------------------------------------------------------------- graphs


def _renamed(proto: onnx.ModelProto) -> None:
    proto.graph.node.append(helper.make_node("Relu", ["x"], ["y"]))


def _sparse(proto: onnx.ModelProto) -> None:
    values = numpy_helper.from_array(np.ones(2, F), "S")
    indices = helper.make_tensor("i", TensorProto.INT64, [2], [3, 70])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [64, 64]))
    proto.graph.node.append(helper.make_node("MatMul", ["y", "S"], ["z"]))


UNSOUND: dict[str, tuple[onnx.ModelProto, str]] = {
    "a name twice": (changed(_renamed), "gives the name 'y' to more than one tensor"),
    "a weight twice": (
        changed(lambda p: p.graph.initializer.append(numpy_helper.from_array(W, "W"))),
        "gives the name 'W' to more than one tensor",
    ),
    "a weight and a result": (
        changed(lambda p: p.graph.initializer.append(numpy_helper.from_array(W, "y"))),
        "gives the name 'y' to more than one tensor",
    ),
    "made by nobody": (
        model("g (float[N, 64] x) => (float[N, 64] y) { y = MatMul (x, none) }"), "reads 'none', which nothing gives",
    ),
    "a circle": (
        model("g (float[N, 64] x) => (float[N, 64] y) { a = Add (x, b) b = Relu (a) y = MatMul (b, W) }", W=W),
        "wait for one another in a circle",
    ),
    "sparse": (changed(_sparse), r"sparse initializers \('S'\) are not taken: store them as dense ones"),
    "no version": (changed(lambda p: p.ClearField("opset_import")), "does not say of which version"),
    "a shape": (changed(lambda p: p.graph.initializer[0].dims.__setitem__(0, -64)), r"'W' has the shape \[-64, 64\]"),
    "a type": (
        changed(lambda p: setattr(p.graph.initializer[0], "data_type", 77)), "not a valid DataType",
    ),
    "too few bytes": (
        changed(lambda p: setattr(p.graph.initializer[0], "raw_data", b"1234")), "weight 'W' cannot be read",
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", ["proto", "file"])
@pytest.mark.parametrize("case", UNSOUND)
@pytest.mark.filterwarnings("ignore")
def test_graphs_that_are_not_sound(case: str, form: str, tmp_path: Path) -> None:
    proto, message = UNSOUND[case]
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(FileError, match=message):
        bs.quantize_model(path if form == "file" else proto, "mxfp8")


def test_nodes_in_any_order() -> None:
    proto = model("g (float[N, 64] x) => (float[N, 64] y) { a = MatMul (x, W) y = MatMul (a, W) }", W=W)
    nodes = [copy.deepcopy(node) for node in proto.graph.node]
    expected = bs.quantize_model(proto, "mxfp8")(X)
    proto.graph.ClearField("node")
    proto.graph.node.extend(reversed(nodes))
    np.testing.assert_array_equal(bs.quantize_model(proto, "mxfp8")(X), expected)


def test_versions_to_come() -> None:
    with pytest.raises(CombinationError, match=r"of opset 99, and onnx .* knows \d+: a newer onnx"):
        bs.quantize_model(changed(lambda p: setattr(p.opset_import[0], "version", 99)), "mxfp8")


# --------------------------------------------------------------------------------------- quantized already

QUANTIZED: dict[str, tuple[str, str, str]] = {
    "ONNX's nodes": (
        "a = QuantizeLinear (x, s, z) b = DequantizeLinear (a, s, z) y = MatMul (b, W)", "",
        r"1 × quantize, 1 × dequantize",
    ),
    "dynamic ones": (
        "a, t, u = DynamicQuantizeLinear (x) b = DequantizeLinear (a, t, u) y = MatMul (b, W)", "", "1 × quantize",
    ),
    "Quark's": (
        "a = com.amd.quark.MXQuantizeDequantize (x) y = MatMul (a, W)", ', "com.amd.quark" : 1', "fake_quantize",
    ),
    "Quark's for blocks": (
        "a = com.amd.quark.BFPQuantizeDequantize (x) y = MatMul (a, W)", ', "com.amd.quark" : 1', ".",
    ),
    "on codes": ("a = QuantizeLinear (x, s, z) b = QLinearMatMul (a, s, z, V, s, z, s, z) "
                 "y = DequantizeLinear (b, s, z)", "", "QLinearMatMul"),
    "integers": ("i = MatMulInteger (V, V) j = Cast <to = 1> (i) y = MatMul (x, j)", "", "1 × MatMulInteger"),
    "four bits": (
        "a = com.microsoft.MatMulNBits <K = 64, N = 64, bits = 4, block_size = 32> (x, B, q) y = MatMul (a, W)",
        ', "com.microsoft" : 1', "MatMulNBits",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", QUANTIZED)
@pytest.mark.parametrize("call", [bs.quantize_model, bs.fake_quantize_model])
def test_models_that_are_quantized(case: str, call: Any) -> None:
    body, domains, what = QUANTIZED[case]
    tensors = {
        "W": W, "s": F(0.1), "z": np.int8(0), "V": np.ones((64, 64), np.int8), "q": np.ones(128, F),
        "B": np.ones((64, 2, 16), np.uint8),
    }  # fmt: skip
    used = {
        name: v for name, v in tensors.items() if any(f"{a}{name}{b}" in body for a in " (" for b in ",)")
    }
    proto = model(f"g (float[N, 64] x) => (float[N, 64] y) {{ {body} }}", domains=domains, **used)
    with pytest.raises(
        CombinationError, match=f"quantized already: give the float model, or no recipe.*{what}"
    ):
        call(proto, "mxfp4")


def test_models_that_we_quantized(tmp_path: Path) -> None:
    qm = bs.quantize_model(product(), "mxfp8")
    qm.save(tmp_path / "model.onnx")
    for given in (qm, tmp_path / "model.onnx", bs.fake_quantize_model(product(), "mxfp8")):
        with pytest.raises(CombinationError, match="quantized already: give the float model, or no recipe"):
            bs.quantize_model(given, "mxfp4")


# --------------------------------------------------------------------------------------- tensors


def fake(proto: onnx.ModelProto, recipe: Any, inputs: dict[str, Any]) -> list[Any]:
    return list(Runner(bs.fake_quantize_model(proto, recipe)).run(inputs).values())


NO_RANK = product()
for edge in (NO_RANK.graph.input[0], NO_RANK.graph.output[0]):
    edge.type.tensor_type.ClearField("shape")
IF = """y = If (c) <then_branch = t () => (float[3, 64] a) { a = MatMul (x, W) },
    else_branch = e () => (float[3, 64] b) { b = Identity (x) }>"""
LOOP = """y = Loop (n, , x) <body = t (int64 i, bool c, float[3, 64] s) => (bool k, float[3, 64] o)
    { k = Identity (c) o = MatMul (s, W) }>"""
SCAN = "y = Scan <num_scan_inputs = 1, body = t (float[64] s) => (float[64] o) { o = MatMul (s, W) }> (x)"

# Model, inputs, and how many tensors get a layout by `mxfp8-all`.
ODD: dict[str, tuple[onnx.ModelProto, dict[str, Any], int]] = {
    "sizes of the run where blocks are": (
        model("g (float[N, K] x, float[K, M] z) => (float[N, M] y) { y = MatMul (x, z) }"),
        {"x": X[:, :50], "z": W[:50]}, 3,
    ),
    "an unknown rank": (NO_RANK, {"x": X}, 1),
    "no rows": (product(), {"x": X[:0]}, 3),
    "nothing to add up": (
        model("g (float[N, 0] x) => (float[N, 64] y) { y = MatMul (x, W) }", W=W[:0]), {"x": X[:, :0]}, 3,
    ),
    "float64 beside": (
        model("g (float[N, 64] x, double[N, 64] z) => (float[N, 64] y, double[N, 64] u) "
              "{ y = MatMul (x, W) u = MatMul (z, V) }", W=W, V=W.astype(float)), {"x": X, "z": X.astype(float)}, 3,
    ),
    "strings beside": (
        model("g (float[N, 64] x, string[N] z) => (float[N, 64] y, string[N] u) { y = MatMul (x, W) u = Identity (z) }",
              W=W), {"x": X, "z": np.array(["a", "b", "c"], object)}, 3,
    ),
    "a sequence": (
        model("g (float[3, 64] x) => (float[3, 64] y) { s = SequenceConstruct (x, x) i = Constant <value_int = 0> () "
              "b = SequenceAt (s, i) y = MatMul (b, W) }", W=W), {"x": X}, 3,
    ),
    "an optional": (
        model("g (optional(float[3, 64]) x) => (float[3, 64] y) { b = OptionalGetElement (x) y = MatMul (b, W) }", W=W),
        {"x": X}, 3,
    ),
    "a weight along two axes, and as a tensor": (
        model("g (float[N, 64] x) => (float[N, 64] y, float[N, 64] z, float[64] u) "
              "{ y = MatMul (x, W) z = Gemm <transB = 1> (x, W) u = ReduceSum <keepdims = 0> (W, axes) }",
              W=W, axes=np.array([0])), {"x": X}, 6,
    ),
    "names of nodes twice": (
        model("g (float[N, 64] x) => (float[N, 64] y) { [m] a = MatMul (x, W) [m] y = MatMul (a, W) }", W=W),
        {"x": X}, 6,
    ),
    "If": (model(f"g (float[3, 64] x, bool c) => (float[3, 64] y) {{ {IF} }}", W=W),
           {"x": X, "c": np.array(True)}, 3),
    "Loop": (model(f"g (float[3, 64] x, int64 n) => (float[3, 64] y) {{ {LOOP} }}", W=W),
             {"x": X, "n": np.array(2)}, 3),
    "Scan": (model(f"g (float[3, 64] x) => (float[3, 64] y) {{ {SCAN} }}", W=W), {"x": X}, 3),
}  # fmt: skip


@pytest.mark.parametrize("case", ODD)
def test_odd_tensors(case: str, tmp_path: Path) -> None:
    """What has a layout has it, the rest is as it was, and the bits are those of the fake-quantized model."""
    proto, inputs, count = ODD[case]
    qm = bs.quantize_model(proto, "mxfp8-all")
    assert sum(row["rule"] is not None for row in qm.report.tensors) == count
    qm.save(tmp_path / "model.onnx")
    expected = fake(proto, "mxfp8-all", inputs)
    for one in (qm, bs.load(tmp_path / "model.onnx")):
        one.runner = "reference"
        found = one(inputs)
        for a, b in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_what_was_left_is_told() -> None:
    def left(proto: onnx.ModelProto) -> str:
        entries = bs.quantize_model(proto, "mxfp8-all").report.entries
        return "; ".join(entry["left"] for entry in entries if entry.get("left"))

    assert "weight 1 is f64, which has no layouts" in left(ODD["float64 beside"][0])
    unknown = "g (float[N, 64] x) => (float[N, 64] y) { a = Foo (x) b = o.Foo (a) y = MatMul (b, W) }"
    told = left(model(unknown, domains=', "o" : 1', W=W))
    assert "ai.onnx::Foo is not known" in told and "o::Foo is not known" in told


def test_layouts_that_the_sizes_of_the_run_forbid() -> None:
    proto = ODD["sizes of the run where blocks are"][0]
    with pytest.raises(RecipeError, match="how many static scales it takes is not known before the run"):
        bs.quantize_model(proto, [Rule("int4-g32", dynamic=False)])
    only = model("g (double[N, 64] x) => (double[N, 64] y) { y = MatMul (x, V) }", V=W.astype(float))
    for recipe in ("mxfp8", [Rule("mxfp8")]):
        with pytest.raises(RecipeError, match="its dtype is f64, not f32, bf16, f16: cast it"):
            bs.quantize_model(only, recipe)


def test_where_it_cannot_be_written(tmp_path: Path) -> None:
    qm = bs.quantize_model(product(), "mxfp8")
    (tmp_path / "folder.onnx").mkdir()
    for path in (tmp_path / "nowhere" / "a.onnx", tmp_path / "folder.onnx"):
        with pytest.raises(FileError, match="cannot be written"):
            qm.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["folder.onnx"]
