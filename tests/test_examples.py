"""The examples run as they stand, and print what they promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from models.onnx_nets import CASES

EXAMPLES = Path(__file__).parent.parent / "examples"

PROMISED = {
    "quantize_torch.py": [
        r"recipe    mxfp4\n", r"weights   2 × mxint8", r"constants 1\.05 MB → 0\.2\d MB", r"output 0 \(output\)",
        r"SQNR of the output: 1\d\.\d dB with mxfp4, 2\d\.\d dB", r"loaded with the same results: True\n$",
    ],
    "quantize_onnx.py": [
        r"recipe    int8\n", r"int8, against float", r"mxint8, against float", r"logits \(output\) +[34]\d\.\d\d",
        r"portable +\d+ kB of 80, as it comes, the same results: True\n",
        r"native +\d+ kB of 80, as it comes, the same results: True\n",
        r"custom +\d\d kB of 80, our library, the same results: True\n", r"loaded with the same results: True\n$",
    ],
    "quark_tutorial.py": [
        r"float: 899 kB", r"\nint8  .* 40\.\d  True\n", r"\nfp8_e4m3 .* 2\d\.\d  True\n",
        r"\nfp8_e5m2 .* 1\d\.\d  True\n", r"\nfp6_e3m2 .* 1\d\.\d  True\n",
        r"\nfp6_e2m3 .* 2\d\.\d  True\n", r"\nfp4_e2m1 .* 1\d\.\d  True\n$",
    ],
    "passes.py": [
        r"lift +\w+: lifted over view", r"fake_quantize +4 → 2\n", r"became a quantize and a dequantize of mxfp8",
        r"fused.linear +0 → 3\n", r"the same bits: True\n[^$]*the same bits: True\n$",
    ],
}  # fmt: skip


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_run() -> None:
    assert {file.name for file in EXAMPLES.glob("*.py")} == PROMISED.keys()


@pytest.mark.parametrize("name", PROMISED)
def test_example(name: str) -> None:
    shown = run(name)
    for pattern in PROMISED[name]:
        assert re.search(pattern, shown), shown


def test_the_model_of_a_user(tmp_path: Path) -> None:
    onnx.save(CASES["convolutions"].proto(), tmp_path / "model.onnx")
    assert run("quark_tutorial.py", str(tmp_path / "model.onnx")).count("  True\n") == 6
    assert "loaded with the same results: True" in run("quantize_onnx.py", str(tmp_path / "model.onnx"))
