"""The house: importing blockscale stays small, and the command works without any framework."""

import json
import subprocess
import sys

import pytest

FRAMEWORKS = {"torch", "onnx", "onnx_ir", "onnxruntime"}

# Stands in for an installation without extras: any import of a framework fails.
WITHOUT_FRAMEWORKS = f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {FRAMEWORKS!r}:
            raise ModuleNotFoundError(f"no module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
"""


def run(code: str) -> str:
    """What `code` prints in a fresh interpreter where warnings are errors."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("module", ["blockscale", "blockscale.cli"])
def test_import_loads_no_framework(module: str) -> None:
    loaded = json.loads(run(f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"))
    assert not FRAMEWORKS & {name.partition(".")[0] for name in loaded}


def test_import_works_without_frameworks() -> None:
    run(WITHOUT_FRAMEWORKS + "import blockscale")


def test_help_works_without_frameworks() -> None:
    shown = run(WITHOUT_FRAMEWORKS + "from blockscale.cli import main; main(['--help'])")
    assert "Usage" in shown
