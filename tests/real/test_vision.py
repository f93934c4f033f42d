"""Convolutional networks through export → fake-quantize → optimize: equal in bits to those made by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from real.by_hand import MEANING, by_hand
from real.through import assert_same, through
from real.vision import Mobilenet, Resnet, images, network

pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")

CALIBRATION = [(images(seed=5),), (images(seed=6),)]
INPUTS = [(images(),), (images(5),)]
Export = tuple[nn.Module, ExportedProgram]


@pytest.fixture(scope="module", params=[Resnet, Mobilenet])
def program(request: pytest.FixtureRequest) -> Export:
    model = network(request.param)
    with torch.no_grad():
        return model, torch.export.export(model, INPUTS[0], dynamic_shapes=({0: Dim("batch", max=64)},))


@pytest.mark.parametrize("preset", [name for name in MEANING if "token" not in name])
def test_presets_mean_what_they_do_by_hand(preset: str, program: Export) -> None:
    quantized, _ = through(program[1], preset, INPUTS, CALIBRATION)
    assert_same(quantized, by_hand(program[0], preset, CALIBRATION, head="head"), INPUTS)


@pytest.mark.parametrize("preset", ["mxfp4-all", "mxfp4-mxint8-all", "int8-all", "uint8-all"])
def test_presets_of_every_activation(preset: str, program: Export) -> None:
    through(program[1], preset, INPUTS, CALIBRATION)


@pytest.mark.parametrize("preset", ["mxfp4-mxint8", "int8-dynamic"])
def test_decomposed(preset: str, program: Export) -> None:
    model, float_program = program
    quantized, _ = through(float_program.run_decompositions(), preset, INPUTS, CALIBRATION, in_order=True)
    reference = by_hand(model, preset, CALIBRATION, head="head")
    with torch.no_grad():
        exported = torch.export.export(reference, INPUTS[0], dynamic_shapes=({0: Dim("batch", max=64)},))
    assert_same(quantized, exported.run_decompositions(), INPUTS, in_order=True)
