"""How far two runs are apart, against the definitions."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from blockscale.errors import ShapeError
from blockscale.report.comparison import compared

A = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)
B = A + np.random.default_rng(1).standard_normal((3, 40)).astype(np.float32) / 100


def test_sums_run_over_all_batches() -> None:
    found = compared([({"y": A}, {"y": B}), ({"y": A[:1] * 100}, {"y": B[:1] * 100})], ["y"])
    a = np.concatenate([A, A[:1] * 100]).astype(np.float64)
    b = np.concatenate([B, B[:1] * 100]).astype(np.float64)
    (row,) = found.rows
    assert row.sqnr == pytest.approx(10 * math.log10((a**2).sum() / ((a - b) ** 2).sum()))
    assert row.cosine == pytest.approx((a * b).sum() / math.sqrt((a**2).sum() * (b**2).sum()))
    assert row.max_error == np.abs(a - b).max() and row.peak == np.abs(a).max()
    assert (row.elements, found.batches, row.is_output) == (160, 2, True)


def test_what_numbers_cannot_say() -> None:
    nan, inf = np.float32("nan"), np.float32("inf")
    x = np.array([1, nan, inf, -inf], np.float32)
    rows = {
        row.tensor: row
        for row in compared(
            [
                (
                    {
                        "same": x,
                        "lost": x,
                        "made": np.ones(4, np.float32),
                        "zeros": np.zeros(4),
                        "none": np.zeros(0),
                    },
                    {"same": x, "lost": np.ones(4), "made": x, "zeros": np.ones(4), "none": np.zeros(0)},
                )
            ],
            [],
        ).rows
    }
    assert rows["same"].equal and rows["same"].sqnr == inf and rows["same"].cosine == 1
    assert rows["none"].equal and rows["none"].elements == 0
    for name in ("lost", "made"):
        assert rows[name].sqnr == -inf and rows[name].max_error == inf and math.isnan(rows[name].cosine)
    assert rows["zeros"].sqnr == -inf and rows["zeros"].cosine == 0 and rows["zeros"].max_error == 1


def test_large_numbers_do_not_overflow() -> None:
    x = np.full(1000, 3e38, np.float32)
    (row,) = compared([({"y": x}, {"y": -x})], []).rows
    assert row.sqnr == pytest.approx(10 * math.log10(1 / 4)) and row.cosine == pytest.approx(-1)


def test_as_data() -> None:
    found = compared([({"y": A, "z": A}, {"y": A, "z": B})], ["y"])
    data = json.loads(found.to_json())
    assert [row["tensor"] for row in data["tensors"]] == ["z", "y"]
    assert data["tensors"][1]["sqnr"] == math.inf and data["batches"] == 1
    assert "y (output)" in str(found)


def test_shapes() -> None:
    with pytest.raises(
        ShapeError, match=r"y of the other model, shape = \(40,\): \(3, 40\), as in the reference"
    ):
        compared([({"y": A}, {"y": A[0]})], [])
