"""docs/migrate-from-quark.md: every expression in the right columns of its tables is one, and does something."""

from __future__ import annotations

import doctest
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockscale as bs
from blockscale.runtime.calibration_data import random
from blockscale.targets.onnx import QuantizedOnnx

PAGE = Path(__file__).parent.parent / "docs" / "migrate-from-quark.md"
TEXT = PAGE.read_text(encoding="utf-8")
ROW = re.compile(r"^\| (?P<theirs>.+) \| (?P<ours>.+) \|$", re.MULTILINE)
SPAN = re.compile(r"`([^`]+)`")
WORDS = re.compile(r"[\w.]+|blockscale \w+|BLOCKSCALE_CHECK=1")  # of code that is no expression of ours

EXPRESSIONS = sorted(
    {
        span
        for row in ROW.finditer(TEXT)
        if row["ours"] != "blockscale" and not row["ours"].startswith("–")
        for span in SPAN.findall(row["ours"])
        if not WORDS.fullmatch(span)
    }
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With model.onnx, the one that the page makes."""
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        names: dict[str, Any] = {}
        for block in re.finditer(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL):
            test = doctest.DocTestParser().get_doctest(block[1], names, PAGE.name, str(PAGE), 0)
            assert not doctest.DocTestRunner().run(test, clear_globs=False).failed
            names = test.globs
    (folder / "data").mkdir()
    np.save(folder / "data" / "0.npy", np.random.default_rng(0).standard_normal((2, 32, 8, 8), np.float32))
    return folder


def test_the_page_has_them() -> None:
    assert len(EXPRESSIONS) > 60 and '"mxfp4"' in EXPRESSIONS and "compat" not in EXPRESSIONS


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_expression(text: str, folder: Path) -> None:
    model = folder / "model.onnx"
    batches = [{"image": np.load(folder / "data" / "0.npy")}]
    names: dict[str, Any] = {
        "bs": bs, "random": random, "reader": iter(batches), "folder": folder / "data", "model": model,
        "batches": batches, "qm": bs.quantize_model(model, "mxint8", compat="quark"),
    }  # fmt: skip
    named = re.fullmatch(r"(\w+)=(.+)", text)
    if named is None:
        recipe_or_more(eval(text, names), model, batches)
        return
    given = {named[1]: eval(named[2], names)}
    if named[1] in inspect.signature(QuantizedOnnx.save).parameters:
        bs.quantize_model(model, "mxint8").save(folder / "out.onnx", **given)
        return
    needs_data = named[1] in ("calibration", "method")
    more = {"calibration": batches} if needs_data else {}
    bs.quantize_model(model, "int8" if needs_data else "mxint8", **(more | given))


def recipe_or_more(value: Any, model: Path, batches: list[Any]) -> None:
    if isinstance(value, str) and value.startswith("half"):
        value = bs.Rule("mxint8", rounding=value)
    if isinstance(value, str):
        assert bs.quantize_model(model, value, calibration=batches).report.tensors
        if set(value.split("-")) <= {"mxint8", "mxfp4", "mx9", "mx6", "mx4", "bfp16", "float"}:
            bs.quantize_model(model, value, compat="quark")
    if isinstance(value, bs.Rule):
        is_theirs = value.scheme is None or value.scheme.family == "mx"
        rules = [value, bs.Rule("mxint8", optional=True)] if is_theirs else [value]
        compat = "quark" if is_theirs else None
        bs.quantize_model(model, rules, compat=compat, calibration=batches)
