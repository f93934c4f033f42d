"""What the documents show is what happens: their examples are run, their links and tables checked."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

import blockscale as bs

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
YAML = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```(\w*)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
WITHIN = re.compile(r"\]\(#([^)\s]+)\)")


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")  # torch.onnx.export
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_examples(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every python block is a session: one after the other, in one namespace and a folder of its own."""
    monkeypatch.chdir(tmp_path)
    text, names = path.read_text(encoding="utf-8"), dict[str, object]()
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start()) + 1
        # A name of its own: doctest finds the source of functions by it, and errors show that.
        name = f"{path.name}:{line}"
        test = doctest.DocTestParser().get_doctest(block[1], names, name, str(path), line)
        assert test.examples, f"{path.name}:{line} shows nothing"
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
        report: list[str] = []
        runner.run(test, out=report.append, clear_globs=False)
        assert not runner.failures, "".join(report)
        names = test.globs


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_recipes(path: Path) -> None:
    """Every yaml block is a recipe that is read, and comes back the same when it is written."""
    for block in YAML.finditer(path.read_text(encoding="utf-8")):
        recipe = bs.Recipe.from_yaml(block[1])
        assert bs.Recipe.from_yaml(recipe.to_yaml()) == recipe


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_nothing_is_shown_that_is_not_run(path: Path) -> None:
    assert {*FENCE.findall(path.read_text(encoding="utf-8"))} <= {"python", "yaml", ""}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links(path: Path) -> None:
    for target in LINK.findall(path.read_text(encoding="utf-8")):
        assert "://" in target or (path.parent / target).exists(), target
    headings = HEADING.findall(path.read_text(encoding="utf-8"))
    anchors = {re.sub(r"[^\w\s-]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert {*WITHIN.findall(path.read_text(encoding="utf-8"))} <= anchors


def test_generated_parts_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "generate.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_readme_shows_its_examples() -> None:
    """Of numbers, and of models."""
    assert len(BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))) == 2
