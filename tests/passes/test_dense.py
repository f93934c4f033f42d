"""Dense: convolutions' packed weights without padding, and the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockscale as bs
from blockscale.runtime.onnx_reference import Runner
from models.resnet import pictures, resnet

MODEL = resnet((1,), width=32, size=16, classes=10)
X = pictures(2, 16)


def made(preset: str, dense: bool) -> Any:
    from blockscale.passes.pipeline import FLOATS

    stages = [stage for stage in FLOATS if dense or stage != "dense"]
    return bs.quantize_model(MODEL, preset, stages=stages, check=True)


@pytest.mark.parametrize("preset", ["mxfp4", "mxfp6", "nvfp4", "int4-g32-float"])
def test_the_same_bits_in_fewer_bytes(preset: str) -> None:
    dense, sparse = made(preset, True), made(preset, False)
    wanted, found = (Runner(model.model).run({"x": X})["y"] for model in (sparse, dense))
    np.testing.assert_array_equal(found, wanted)
    assert dense.report.bytes_after < 0.9 * sparse.report.bytes_after


def test_what_wastes_nothing_stays() -> None:
    entries = made("mxint8", True).report.entries
    assert not [entry for entry in entries if entry["stage"] == "dense"]
