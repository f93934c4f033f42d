"""quantize and compare: what they write, what they print, and what they refuse, in one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result

import blockscale as bs
from blockscale import recipe_presets
from blockscale.cli import main
from blockscale.report import quantized
from models.onnx_nets import CASES


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments])


def ran(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(code: int, *arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == code, result.output
    last = result.stderr.strip().splitlines()
    assert last[-1].startswith("Error: ") and (code == 2 or len(last) == 1)
    return last[-1]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A language model: static scales need data with `ids`."""
    onnx.save(CASES["language model"].proto(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for i in range(2):
        np.save(folder / f"{i}.npy", np.random.default_rng(i).integers(0, 50, (2, 5)))
    return folder


# ------------------------------------------------------------------------------------------ quantize


def test_quantize(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    shown = ran("quantize", model, "-r", "mxfp4", "-o", out)
    assert "2 × mxfp4, 32 along axis -2" in shown and "92,160 → 16,328 bytes (0.177)" in shown
    assert f"blockscale inspect {out}" in shown and "left float" in shown and "left alone" in shown
    assert bs.load(out).report.recipe == "mxfp4"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "out.onnx"]


def test_quantize_json(model: Path, tmp_path: Path, data: Path) -> None:
    out = tmp_path / "out.onnx"
    found = json.loads(
        ran("quantize", model, "-r", "int8", "-o", out, "--calibration", data, "--method", "percentile,percentile=99",
            "--json")
    )  # fmt: skip
    assert (found["recipe"], found["file"], found["form"]) == ("int8", str(out), None)
    assert found["file_bytes"] == out.stat().st_size and found["bytes_after"] < found["bytes_before"]
    assert {row["layout"] for row in found["tensors"]} > {"int8,dynamic=false, whole tensor"}


def test_quantize_with_rules_from_a_file(model: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("name: mine\nrules:\n  - {layout: mxfp8, use: linear, role: weight}\n")
    ran("quantize", model, "-r", recipe, "-o", tmp_path / "out.onnx")
    assert bs.load(tmp_path / "out.onnx").report.recipe == "mine"


def test_random_data_is_an_explicit_choice(model: Path, tmp_path: Path) -> None:
    arguments = ("quantize", model, "-r", "int8", "-o", tmp_path / "out.onnx")
    assert "take static scales" in refused(1, *arguments)
    assert "which sizes?" in refused(1, *arguments, "--calibration", "random:2")
    assert not (tmp_path / "out.onnx").exists()
    ran(*arguments, "--calibration", "random:2", "--shape", "ids=2,3")


def test_options_reach_the_functions(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the user gives, and no others."""
    made, seen = bs.quantize_model(model, "mxfp4"), []

    class Saved:
        report = made.report

        def save(self, path: Path, **given: Any) -> None:
            seen.append(given)
            made.save(path)

    def quantize_model(path: Path, recipe: str, **given: Any) -> Saved:
        seen.append(given)
        return Saved()

    monkeypatch.setattr(bs, "quantize_model", quantize_model)
    out = tmp_path / "out.onnx"
    ran("quantize", model, "-r", "mxfp4", "-o", out)
    shown = ran("quantize", model, "-r", "mxfp4", "-o", out, "--form", "portable", "--compat", "quark",
                "--library", model, "--method", "mse,grid=8")  # fmt: skip
    given = {"compat": "quark", "libraries": (str(model),), "method": ("mse", {"grid": 8})}
    assert seen == [{}, {}, given, {"form": "portable"}]
    assert "operators of ONNX alone" in shown
    seen.clear()
    more = ("--form", "native", "--runtime", "onnxruntime", "--prepare")
    ran("quantize", model, "-r", "mxfp4", "-o", out, *more, "opset,shapes")
    ran("quantize", model, "-r", "mxfp4", "-o", out, *more, "none")
    saved = {"form": "native", "runtime": "onnxruntime"}
    assert seen == [{"prepare": ["opset", "shapes"]}, saved, {"prepare": "none"}, saved]


def test_quantizes_that_the_model_has(model: Path, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "out.onnx", tmp_path / "theirs.onnx"
    ran("quantize", model, "-r", "mxfp4", "-o", theirs, "--compat", "quark")
    ran("quantize", theirs, "-o", ours)
    assert bs.load(ours).report.bytes_after < bs.load(theirs).report.bytes_before
    assert "for a model that has no quantizes of its own" in refused(1, "quantize", model, "-o", ours)


def test_types_of_a_runtime(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    arguments = ("quantize", model, "-r", "mxfp4", "-o", out)
    assert "add --form native" in refused(2, *arguments, "--runtime", "onnxruntime")
    shown = ran(*arguments, "--form", "native", "--runtime", "onnxruntime")
    assert f"onnxruntime.InferenceSession('{out}')" in shown
    types = {weight.data_type for weight in onnx.load(out).graph.initializer}
    assert onnx.TensorProto.FLOAT8E4M3FN in types and onnx.TensorProto.FLOAT4E2M1 not in types


@pytest.mark.parametrize("form", ["custom", "portable", "native"])
def test_inspect_shows_the_same_tensors_of_every_form(tmp_path: Path, form: str) -> None:
    onnx.save(CASES["convolutions"].proto(), tmp_path / "model.onnx")
    ran("quantize", tmp_path / "model.onnx", "-r", "mxfp4", "-o", tmp_path / "out.onnx", "--form", form)
    found = json.loads(ran("inspect", tmp_path / "out.onnx", "--json"))
    shown = {(row["name"], row["role"]) for row in found["tensors"]}
    report = bs.load(tmp_path / "out.onnx").report
    meant = {(row["tensor"], row["role"]) for row in report.tensors if row["layout"] != "float"}
    assert len(shown) == len(meant) and {name for name, role in meant if role == "weight"} == {
        name for name, role in shown if role == "weight"
    }


def test_next_steps_know_the_form() -> None:
    assert "blockscale.load('a.pt2')" in quantized.next_steps("m.pt2", "a.pt2", None)
    assert "the types of ONNX in it" in quantized.next_steps("m.onnx", "a.onnx", "native")
    assert "operators of ONNX alone" in quantized.next_steps("m.onnx", "a.onnx", "native", "onnxruntime")


def test_quantize_over_the_model_itself(model: Path) -> None:
    before = model.read_bytes()
    assert "--force writes over it" in refused(2, "quantize", model, "-r", "mxfp4", "-o", model)
    assert model.read_bytes() == before
    ran("quantize", model, "-r", "mxfp4", "-o", model, "--force")
    assert bs.load(model).report.recipe == "mxfp4"


def test_a_file_that_was_there_is_replaced(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    out.write_text("old")
    refused(1, "quantize", model, "-r", "mxfp5", "-o", out)
    assert out.read_text() == "old"
    ran("quantize", model, "-r", "mxfp4", "-o", out)
    bs.load(out)


def test_quantize_refuses(model: Path, tmp_path: Path, data: Path) -> None:
    out = tmp_path / "out.onnx"
    assert "did you mean" in refused(1, "quantize", model, "-r", "mxfp44", "-o", out)
    assert "no such file" in refused(1, "quantize", tmp_path / "absent.onnx", "-r", "mxfp4", "-o", out)
    assert "no folder" in refused(1, "quantize", model, "-r", "mxfp4", "-o", tmp_path / "no" / "out.onnx")
    assert "it is a folder" in refused(
        1, "quantize", model, "-r", "mxfp4", "-o", _folder(tmp_path / "f.onnx")
    )
    assert ".onnx file" in refused(2, "quantize", model, "-r", "mxfp4", "-o", tmp_path / "out.pt2")
    assert "Missing option" in refused(2, "quantize", model, "-r", "mxfp4")
    static = ("quantize", model, "-r", "int8", "-o", out, "--calibration")
    assert "random:N draws" in refused(1, *static, tmp_path / "absent")
    assert "no .npy and no .npz" in refused(1, *static, _folder(tmp_path / "empty"))
    assert "did you mean" in refused(1, *static, data, "--method", "percentil")
    assert "no option=number" in refused(2, *static, data, "--method", "percentile,99")
    assert "not like x=1,3" in refused(2, *static, "random:2", "--shape", "ids")
    assert "--shape is for random data" in refused(2, *static, data, "--shape", "ids=1,2")
    assert "--shape is for random data" in refused(
        2, "quantize", model, "-r", "mxfp4", "-o", out, "--shape", "ids=1"
    )
    assert not out.exists()


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize("size", [0, 10, 1000, 40_000])
def test_truncated_models(model: Path, tmp_path: Path, size: int) -> None:
    model.write_bytes(model.read_bytes()[:size])
    assert str(model) in refused(1, "quantize", model, "-r", "mxfp4", "-o", tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_models_that_are_not_sound(model: Path, tmp_path: Path) -> None:
    """What nobody foresaw is a line too."""
    proto = onnx.load(model)
    proto.graph.initializer[0].dims[0] += 1
    onnx.save(proto, model)
    told = refused(1, "quantize", model, "-r", "mxfp4", "-o", tmp_path / "out.onnx")
    assert "cannot reshape" in told and len(told) < 1000
    assert not (tmp_path / "out.onnx").exists()


def test_names_of_files_are_printed_safely(model: Path, tmp_path: Path) -> None:
    evil = model.rename(tmp_path / "a\x1b[2Jb.onnx")
    shown = ran("quantize", evil, "-r", "mxfp4", "-o", tmp_path / "c\x1b[2Jd.onnx")
    assert "\x1b" not in shown and "c\\x1b[2Jd.onnx" in shown
    assert "\x1b" not in refused(1, "quantize", tmp_path / "\x1b[1m.onnx", "-r", "mxfp4", "-o", evil)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes, to be sure that it is in the middle")
def test_an_interrupt_leaves_nothing(model: Path, tmp_path: Path) -> None:
    folder, out = _folder(tmp_path / "pipe"), tmp_path / "out.onnx"
    out.write_text("old")
    os.mkfifo(folder / "0.npy")
    command = [sys.executable, "-c", "from blockscale.cli import main; main()", "quantize", str(model), "-r", "int8",
               "-o", str(out), "--calibration", str(folder)]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        pipe = _writer(folder / "0.npy", process)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
        os.close(pipe)
    assert (process.returncode, stdout, stderr) == (130, "", "Interrupted\n")
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "out.onnx", "pipe"]


def _writer(pipe: Path, process: subprocess.Popen[str]) -> int:
    """Opens when the command reads its first batch."""
    while process.poll() is None:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.02)
    raise AssertionError(process.communicate()[1])


def test_recipes_are_listed() -> None:
    assert ran("quantize", "--list") == ran("presets", "--recipes")
    shown = ran("presets", "--recipes").split()
    assert set(shown) > set(recipe_presets.names())
    found = json.loads(ran("presets", "--recipes", "--json"))
    assert [row["recipe"] for row in found] == list(recipe_presets.names())
    assert all(row["rules"] for row in found)


@pytest.mark.parametrize("command", ["quantize", "compare", "inspect"])
def test_help_has_examples(command: str) -> None:
    shown = ran(command, "--help")
    assert "Examples:" in shown and f"  blockscale {command} model." in shown


def test_a_missing_extra_is_one_line(model: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules['onnx_ir'] = None\nfrom blockscale.cli import main; main(sys.argv[1:])"
    command = [
        sys.executable,
        "-c",
        code,
        "quantize",
        str(model),
        "-r",
        "mxfp4",
        "-o",
        str(tmp_path / "o.onnx"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: onnx_ir is not installed: pip install 'blockscale[onnx]'\n"


# ------------------------------------------------------------------------------------------ compare


@pytest.fixture
def pair(model: Path, tmp_path: Path) -> tuple[Path, Path]:
    bs.quantize_model(model, "mxfp8").save(tmp_path / "b.onnx")
    return model, tmp_path / "b.onnx"


def test_compare(pair: tuple[Path, Path], data: Path) -> None:
    wanted = bs.compare(*pair, data)
    shown = ran("compare", *pair, "--data", data)
    assert f"{len(wanted.rows)} tensors that both have, batches: 2" in shown
    for row in wanted.rows:
        assert row.tensor in shown and f"{row.sqnr:.2f}" in shown and f"{row.max_error:.3g}" in shown
    assert shown.count("output") == 1
    worst = ran("compare", *pair, "--data", data, "--worst", 1)
    assert "of them shown" in worst and wanted.rows[0].tensor in worst and "output" in worst


def test_compare_json(pair: tuple[Path, Path]) -> None:
    found = json.loads(ran("compare", *pair, "--data", "random:3", "--shape", "ids=2,4", "--json"))
    assert found["batches"] == 3 and [row["tensor"] for row in found["tensors"] if row["is_output"]] == ["y"]
    same = json.loads(ran("compare", pair[0], pair[0], "--data", "random:1", "--shape", "ids=2,4", "--json"))
    assert all(row["sqnr"] == np.inf and row["max_error"] == 0 for row in same["tensors"])


def test_compare_as_a_check(pair: tuple[Path, Path], data: Path) -> None:
    ran("compare", *pair, "--data", data, "--fail-under", 5)
    result = run("compare", *pair, "--data", data, "--fail-under", 200)
    assert result.exit_code == 1 and "tensors that both have" in result.stdout
    assert result.stderr.startswith("Error: y has ") and result.stderr.endswith(" dB: below 200\n")


def test_compare_without_a_common_output(pair: tuple[Path, Path], data: Path) -> None:
    other = onnx.load(pair[1])
    other.graph.node[-1].output[0] = other.graph.output[0].name = "z"
    onnx.save(other, pair[1])
    assert "no output in common" in refused(1, "compare", *pair, "--data", data, "--fail-under", 1)


def test_compare_refuses(pair: tuple[Path, Path], data: Path, tmp_path: Path) -> None:
    assert "no such folder" in refused(1, "compare", *pair, "--data", tmp_path / "absent")
    assert "no such file" in refused(1, "compare", pair[0], tmp_path / "absent.onnx", "--data", data)
    assert "Missing option" in refused(2, "compare", *pair)
    assert "no input 'x'" in refused(1, "compare", *pair, "--data", "random:1", "--shape", "x=2,4")
    np.save(data / "0.npy", np.zeros((2, 5), np.float32))
    assert "cast it" in refused(1, "compare", *pair, "--data", data)
    (data / "0.npy").write_bytes(b"\x93NUMPY no")
    assert "cannot be read" in refused(1, "compare", *pair, "--data", data)


def test_data_as_archives(pair: tuple[Path, Path], data: Path, tmp_path: Path) -> None:
    folder = _folder(tmp_path / "archives")
    for file in data.iterdir():
        np.savez(folder / file.stem, ids=np.load(file))
    assert ran("compare", *pair, "--data", folder) == ran("compare", *pair, "--data", data)
    np.save(folder / "2.npy", np.zeros((1, 1), np.int64))
    assert "which are meant?" in refused(1, "compare", *pair, "--data", folder)
    (folder / "2.npy").unlink()
    (folder / "0.npz").write_bytes(b"PK\x03\x04 no")
    assert "cannot be read" in refused(1, "compare", *pair, "--data", folder)


# ------------------------------------------------------------------------------------------ torch


def test_models_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    a, b, folder = tmp_path / "a.pt2", tmp_path / "b.pt2", _folder(tmp_path / "data")
    torch.export.save(torch.export.export(module, (torch.zeros(4, 64),)), a)
    np.save(folder / "0.npy", np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32))
    shown = ran("quantize", a, "-r", "int8", "-o", b, "--calibration", folder)
    assert "blockscale.load(" in shown and "int8,dynamic=false" in shown
    assert "output 0" in ran("compare", a, b, "--data", folder, "--fail-under", 20)
    assert "output 0" in ran("compare", a, b, "--data", "random:1")
    assert "--form is for .onnx" in refused(2, "quantize", a, "-r", "int8", "-o", b, "--form", "native")
    a.write_bytes(b"PK no")
    assert "cannot load it" in refused(1, "quantize", a, "-r", "int8", "-o", b)
