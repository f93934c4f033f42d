"""What is found in ONNX files, whoever quantized them, and in files that are wrong in every way."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper

import blockscale as bs
from blockscale.cli import main
from blockscale.errors import FileError
from blockscale.report import onnx_layouts, onnx_runs
from blockscale.report.onnx_file import Facts, facts
from models.onnx_nets import CASES, random

X, Y = ("x", T.FLOAT, ["b", 64]), ("y", T.FLOAT, ["b", 32])
MATMUL = helper.make_node("MatMul", ["xd", "wd"], ["y"], name="mm")


def saved(
    path: Path,
    nodes: list[Any],
    weights: list[Any],
    *,
    opset: int = 21,
    functions: Any = (),
    domains: Any = (),
) -> Path:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(*X)], [helper.make_tensor_value_info(*Y)], weights
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10, functions=list(functions)), path)
    return path


def array(name: str, value: Any) -> Any:
    return onnx.numpy_helper.from_array(np.asarray(value), name)


def zeros(name: str, dtype: str, *shape: int) -> Any:
    return array(name, np.zeros(shape, dtype))


def told(found: Facts) -> list[tuple[Any, ...]]:
    return [
        (one.name, one.role, one.layout, one.shape, one.stored_bytes, one.readers) for one in found.tensors
    ]


def ran(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(one) for one in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


# ------------------------------------------------------------------------------------------ ours


@pytest.mark.parametrize("case", CASES)
def test_every_tensor_of_ours(case: str, tmp_path: Path) -> None:
    """As many as the report has, with its layouts, and the bytes that it says."""
    net = CASES[case]
    made = bs.quantize_model(net.proto(), net.recipe, calibration=[net.inputs])
    made.save(tmp_path / "a.onnx")
    found = facts(tmp_path / "a.onnx")
    assert found.stored_bytes == made.report.bytes_after
    twice = net.weights["V"].nbytes if case == "bodies" else 0  # both branches have codes of their own
    assert found.float_bytes == pytest.approx(made.report.bytes_before + twice, abs=4)
    weights = [one for one in found.tensors if one.role == "weight"]
    layouts = [
        row["layout"] for row in made.report.tensors if row["layout"] != "float" and row["role"] == "weight"
    ]
    assert len(weights) == len(layouts)
    assert {one.layout.split(", ")[0] for one in weights} == {text.split(", ")[0] for text in layouts}
    assert all(one.readers and one.ratio is not None and one.ratio < 0.6 for one in weights)
    assert any(one.role == "activation" for one in found.tensors) == ("-float" not in net.recipe)
    assert found.runs[0].runs is False
    assert "blockscale::" in found.runs[0].why


def test_what_is_printed(tmp_path: Path) -> None:
    bs.quantize_model(CASES["language model"].proto(), "mxfp4").save(tmp_path / "a.onnx")
    shown = ran("inspect", tmp_path / "a.onnx")
    assert "mxfp4, 32 along axis -2" in shown and "blockscale::FakeQuantize" in shown
    assert "weights: 4, activations: 3" in shown and "(0.177)" in shown
    assert "no: it has no blockscale::Dequantize × 4, blockscale::FakeQuantize × 3" in shown
    found = json.loads(ran("inspect", tmp_path / "a.onnx", "--json"))
    assert found["opsets"]["blockscale"] == 1 and found["functions"] == {}
    (row,) = (one for one in found["tensors"] if one["name"] == "D")
    assert row["stored_bytes"] == 128 * 64 * 17 // 32 and row["shape"] == [128, 64]
    assert row["ratio"] == pytest.approx(0.1328125)


def test_a_float_model(tmp_path: Path) -> None:
    onnx.save(CASES["attention"].proto(), tmp_path / "a.onnx")
    found = facts(tmp_path / "a.onnx")
    assert found.tensors == () and found.parameters == 2 * 32 * 32
    assert [place.runs for place in found.runs] == [True, True]
    assert "weights: 0, activations: 0" in ran("inspect", tmp_path / "a.onnx")


# ------------------------------------------------------------------------------------------ others'


def test_standard_operators(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", ["wq", "ws"], ["wd"], axis=1), MATMUL,
    ]  # fmt: skip
    weights = [array("s", np.float32(0.1)), array("z", np.uint8(3)), zeros("wq", "int8", 64, 32),
               array("ws", np.ones(32, np.float32))]  # fmt: skip
    found = facts(saved(tmp_path / "a.onnx", nodes, weights))
    assert told(found) == [
        ("x", "activation", "uint8,dynamic=false, whole tensor", ("b", 64), None, ("mm (MatMul)",)),
        ("wq", "weight", "int8,dynamic=false, each index of axis 1", (64, 32), 2176, ("mm (MatMul)",)),
    ]
    assert found.tensors[0].forms == ("QuantizeLinear", "DequantizeLinear")
    assert (found.parameters, found.float_bytes) == (2048, 8192)
    assert [place.runs for place in found.runs] == [True, True]


def test_floats_that_are_quantized_at_each_run(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["w", "s"], ["wq"], output_dtype=T.INT8),
        helper.make_node("DequantizeLinear", ["wq", "s"], ["wd"]),
        helper.make_node("MatMul", ["x", "wd"], ["y"]),
    ]
    found = facts(
        saved(tmp_path / "a.onnx", nodes, [array("s", np.float32(0.1)), array("w", random(64, 32))])
    )
    (row,) = told(found)
    assert row == ("w", "weight", "int8,dynamic=false, whole tensor", (64, 32), 8196, ("MatMul",))


def test_types_of_onnx(tmp_path: Path) -> None:
    weights = [
        helper.make_tensor("wq", T.FLOAT4E2M1, (64, 32), bytes(64 * 16), raw=True),
        helper.make_tensor("ws", T.FLOAT8E8M0, (2, 32), bytes([127] * 64), raw=True),
    ]
    dequantize = helper.make_node(
        "DequantizeLinear", ["wq", "ws"], ["wd"], axis=0, block_size=32, output_dtype=T.FLOAT
    )
    nodes = [dequantize, helper.make_node("MatMul", ["x", "wd"], ["y"])]
    found = facts(saved(tmp_path / "a.onnx", nodes, weights, opset=24))
    assert told(found)[0][2:5] == ("mxfp4,dynamic=false, 32 along axis -2", (64, 32), 1088)
    assert not found.runs[0].runs and "FLOAT4E2M1, FLOAT8E8M0; it says: NOT_IMPLEMENTED" in found.runs[0].why


def test_operators_of_quark(tmp_path: Path) -> None:
    says = {"domain": "com.amd.quark", "element_dtype": "fp4_e2m1", "rounding_mode": 2}
    nodes = [
        helper.make_node("MXQuantizeDequantize", ["x"], ["xd"], axis=-1, **says),
        helper.make_node("MXQuantizeDequantize", ["w"], ["wd"], axis=0, **says), MATMUL,
    ]  # fmt: skip
    found = facts(saved(tmp_path / "a.onnx", nodes, [array("w", random(64, 32))], domains=["com.amd.quark"]))
    assert [row[:3] for row in told(found)] == [
        ("x", "activation", "mxfp4,dialect=quark, 32 along axis -1"),
        ("w", "weight", "mxfp4,dialect=quark, 32 along axis -2"),
    ]
    assert found.tensors[1].ratio == 1 and "com.amd.quark::MXQuantizeDequantize × 2" in found.runs[0].why


@pytest.mark.parametrize(
    "name, notes",
    [
        ("dequantize_mxfp4", {"numbers": "mxfp4", "block": "[32, 1]"}),
        ("Dequantize_mxfp4_32x1", {}),
        ("Dequantize_mxfp4_32x1_2", {}),
    ],
)
def test_portable_functions(tmp_path: Path, name: str, notes: dict[str, str]) -> None:
    body = [helper.make_node("Cast", ["c"], ["y"], to=T.FLOAT)]
    function = helper.make_function(
        "blockscale.portable", name, ["c", "s"], ["y"], body, [helper.make_opsetid("", 21)]
    )
    for key, value in notes.items():
        function.metadata_props.add(key=key, value=value)
    nodes = [
        helper.make_node(name, ["wq", "ws"], ["wd"], domain="blockscale.portable"),
        helper.make_node("MatMul", ["x", "wd"], ["y"]),
    ]
    weights = [zeros("wq", "uint8", 64, 32), zeros("ws", "uint8", 2, 32)]
    path = saved(tmp_path / "a.onnx", nodes, weights, functions=[function], domains=["blockscale.portable"])
    found = facts(path)
    assert told(found) == [("wq", "weight", "mxfp4, 32 along axis -2", (64, 32), 2112, ("MatMul",))]
    assert found.tensors[0].forms == (f"blockscale.portable::{name}",) and found.runs[0].runs


@pytest.mark.parametrize(
    "name, layout",
    [
        ("FakeQuantize_mxint8_rounding_half_away_dialect_quark_1x32",
         "mxint8,rounding=half_away,dialect=quark, 32 along axis -1"),
        ("Quantize_int8_dynamic_false_0x0", "int8,dynamic=false, whole tensor"),
        ("FakeQuantize_int4_scale_bf16_1x128_3", "int4,scale=bf16, 128 along axis -1"),
        ("FakeQuantize_int8_quant_min_127_0x0", ""),  # its sign is not in the name
        ("FakeQuantize", ""),
    ],
)  # fmt: skip
def test_layouts_from_names(name: str, layout: str) -> None:
    assert onnx_layouts.words(onnx_layouts.from_name(name), False) == layout


def test_functions_with_arguments(tmp_path: Path) -> None:
    """Types and arguments of the call decide what is in it; functions may lie in functions."""
    inner = helper.make_node("MXQuantizeDequantize", ["a"], ["b"], domain="com.amd.quark")
    inner.attribute.add(name="axis", ref_attr_name="at", type=onnx.AttributeProto.INT)
    imports = [helper.make_opsetid(domain, 1) for domain in ("com.amd.quark", "f")]
    functions = [
        helper.make_function("f", "Inner", ["a"], ["b"], [inner], imports, attributes=["at"]),
        helper.make_function("f", "Outer", ["a"], ["b"], [helper.make_node("Inner", ["a"], ["b"], domain="f", at=0)],
                             imports),
    ]  # fmt: skip
    nodes = [
        helper.make_node("Inner", ["x"], ["xd"], domain="f", at=1),
        helper.make_node("Outer", ["w"], ["wd"], domain="f"), MATMUL,
    ]  # fmt: skip
    weights = [array("w", random(64, 32))]
    found = facts(
        saved(tmp_path / "a.onnx", nodes, weights, functions=functions, domains=["com.amd.quark", "f"])
    )
    numbers = "mxint8,rounding=half_away,dialect=quark"
    assert told(found) == [
        ("x", "activation", f"{numbers}, 32 along axis -1", ("b", 64), None, ("mm (MatMul)",)),
        ("w", "weight", f"{numbers}, 32 along axis -2", (64, 32), 8192, ("mm (MatMul)",)),
    ]
    assert found.tensors[1].forms == ("com.amd.quark::MXQuantizeDequantize in f::Outer",)


# ------------------------------------------------------------------------------------------ wrong files


def one_line(path: Path) -> str:
    result = CliRunner().invoke(main, ["inspect", str(path)])
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture
def quantized(tmp_path: Path) -> Path:
    bs.quantize_model(CASES["language model"].proto(), "mxfp4").save(tmp_path / "a.onnx")
    return tmp_path / "a.onnx"


@pytest.mark.parametrize("size", [0, 1, 100, 5_000, 20_000])
def test_truncated(quantized: Path, size: int) -> None:
    quantized.write_bytes(quantized.read_bytes()[:size])
    assert str(quantized) in one_line(quantized)


def test_absent_and_folder(tmp_path: Path) -> None:
    assert "no such file" in one_line(tmp_path / "absent.onnx")
    (tmp_path / "folder.onnx").mkdir()
    one_line(tmp_path / "folder.onnx")


@given(at=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_fuzz_a_byte(at: int, byte: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A model, or a FileError."""
    path = tmp_path_factory.getbasetemp() / "fuzzed.onnx"
    net = CASES["gelu"]
    if not (path.parent / "whole.onnx").exists():
        bs.quantize_model(net.proto(), net.recipe).save(path.parent / "whole.onnx")
    content = bytearray((path.parent / "whole.onnx").read_bytes())
    content[at % len(content)] = byte
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_runs, "_tried", lambda proto, library: {"version": "", "failed": "not asked"})
        try:
            facts(path)
        except FileError as error:
            assert str(path) in str(error)


def _chain(count: int, *, back: bool) -> list[Any]:
    """Functions that call the next one twice; the last one itself calls the first."""
    imports = [
        helper.make_opsetid("", 21),
        helper.make_opsetid("f", 1),
        helper.make_opsetid("com.amd.quark", 1),
    ]
    made = []
    for i in range(count):
        last = i == count - 1
        follow = ("f0", "f") if back else ("MXQuantizeDequantize", "com.amd.quark")
        name, domain = follow if last else (f"f{i + 1}", "f")
        nodes = [
            helper.make_node(name, ["a"], ["m"], domain=domain),
            helper.make_node(name, ["m"], ["b"], domain=domain),
        ]
        made.append(helper.make_function("f", f"f{i}", ["a"], ["b"], nodes, imports))
    return made


def test_functions_without_end(tmp_path: Path) -> None:
    nodes = [helper.make_node("f0", ["x"], ["xd"], domain="f"), MATMUL]
    weights = [array("wd", random(64, 32))]
    domains = ["f", "com.amd.quark"]
    path = saved(tmp_path / "a.onnx", nodes, weights, functions=_chain(3, back=True), domains=domains)
    assert "calls itself" in one_line(path)
    saved(path, nodes, weights, functions=_chain(60, back=False), domains=domains)
    assert "stands for more than" in one_line(path)


def test_names_are_printed_safely(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["w\x1b[2J", "s"], ["wd"]),
        helper.make_node("MatMul", ["x", "wd"], ["y"], name="\x1b]0;mm\x07"),
    ]
    path = saved(
        tmp_path / "a\x1b[1m.onnx", nodes, [array("s", np.float32(1)), zeros("w\x1b[2J", "int8", 64, 32)]
    )
    shown = ran("inspect", path)
    assert "\x1b" not in shown and "\x07" not in shown and "w\\x1b[2J" in shown
    path.write_bytes(b"no")
    assert "\x1b" not in one_line(path)


# ------------------------------------------------------------------------------------------ weights in files


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A model of 3 GB whose weights take no room on a disk that knows holes."""
    code = onnx.TensorProto(name="wq", data_type=T.INT8, dims=[64, 48_000_000], data_location=T.EXTERNAL)
    for key, value in (("location", "a.data"), ("offset", "0"), ("length", str(64 * 48_000_000))):
        code.external_data.add(key=key, value=value)
    nodes = [
        helper.make_node("DequantizeLinear", ["wq", "s"], ["wd"]),
        helper.make_node("MatMul", ["x", "wd"], ["y"]),
    ]
    with open(tmp_path / "a.data", "wb") as file:
        os.truncate(file.fileno(), 64 * 48_000_000)
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(*X)],
        [helper.make_tensor_value_info("y", T.FLOAT, ["b", 48_000_000])], [code, array("s", np.float32(0.5))],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 21)]
    (tmp_path / "a.onnx").write_bytes(
        helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    )
    return tmp_path / "a.onnx"


def test_large_weights_are_not_read(outside: Path) -> None:
    found = facts(outside)
    assert found.stored_bytes == 64 * 48_000_000 + 4 and found.external_files == ("a.data",)
    assert found.float_bytes == 4 * 64 * 48_000_000 and found.runs[0].runs
    assert "weights in" in ran("inspect", outside)


def test_weights_that_are_not_there(outside: Path) -> None:
    os.truncate(outside.with_name("a.data"), 1000)
    assert "cut off, or of another model" in one_line(outside)
    outside.with_name("a.data").unlink()
    assert "a.data" in one_line(outside)


# ------------------------------------------------------------------------------------------ where it runs


def test_a_death_of_onnxruntime_is_a_line(quantized: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def died(command: Any, **_: Any) -> Any:
        return subprocess.CompletedProcess(command, -11, b"", b"")

    def slow(command: Any, **_: Any) -> Any:
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(subprocess, "run", died)
    assert facts(quantized).runs[0].why == "onnxruntime died of it, exit code -11"
    monkeypatch.setattr(subprocess, "run", slow)
    assert "had not finished" in facts(quantized).runs[0].why


def test_newer_than_onnxruntime(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = saved(tmp_path / "a.onnx", nodes, [array("w", random(64, 32))])
    proto = onnx.load(path)
    proto.ir_version = 99
    path.write_bytes(proto.SerializeToString())
    found = facts(path)
    assert not found.runs[0].runs and "99" in found.runs[0].why


def test_what_is_no_tensor_of_numbers(tmp_path: Path) -> None:
    """Strings, sparse weights, sequences, and a quantize of what nobody knows the shape of."""
    words = helper.make_tensor("words", T.STRING, [2], ["a", "b" * 2000])
    nodes = [
        helper.make_node("Identity", ["words"], ["more"]),
        helper.make_node("SequenceConstruct", ["x", "x"], ["xs"]),
        helper.make_node("Anything", ["x"], ["u"], domain="else"),
        helper.make_node("QuantizeLinear", ["u", "s"], ["q"], output_dtype=T.INT8),
        helper.make_node("DequantizeLinear", ["q", "s"], ["y"]),
    ]
    path = saved(tmp_path / "a.onnx", nodes, [words, array("s", np.float32(1))], domains=["else"])
    proto = onnx.load(path)
    values = helper.make_tensor("sparse", T.FLOAT, [2], [1.0, 2.0])
    indices = helper.make_tensor("indices", T.INT64, [2], [0, 3])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 4]))
    assert "it has no else::Anything × 1" in ran("inspect", path)
    onnx.save(proto, path)
    assert "sparse initializers ('sparse') are not taken" in one_line(path)


def test_with_a_library(quantized: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_runs, "_library", lambda: ("/no/such/library.so", ""))
    stock, library = facts(quantized).runs
    assert stock.runs is False and "it has no blockscale::Dequantize" in stock.why
    assert library.runs is False and "/no/such/library.so" in library.why
    monkeypatch.setattr(
        onnx_runs, "_tried", lambda proto, path: {"version": "1", "stock": "no", "library": ""}
    )
    assert facts(quantized).runs[1] == onnx_runs.Place("onnxruntime with our operator library", True, "")
