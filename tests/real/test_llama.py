"""Llama through export → fake-quantize → optimize: equal in bits to a model quantized by hand."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.export import ExportedProgram

from blockscale.passes import optimize
from blockscale.passes.pipeline import COMBINE
from real.by_hand import MEANING, by_hand
from real.llama import FORMS, HEAD, Block, Llama, exported, hidden, ids
from real.through import assert_same, quantizes, through

pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")

F32, BF16 = torch.float32, torch.bfloat16
STATIC = [(ids(),), (ids(seed=1),)]
DYNAMIC = [*STATIC, (ids(3, 11),)]
Export = tuple[Llama, ExportedProgram]

# attention, dtype, dynamic shapes, decomposed
SOME = (
    ("sdpa", F32, False, True),
    ("sdpa", BF16, True, False),
    ("eager", F32, False, False),
    ("eager", BF16, True, True),
)
EVERY = tuple(itertools.product(("sdpa", "eager"), (F32, BF16), (False, True), (False, True)))


@pytest.fixture(scope="module")
def program() -> Export:
    model = Llama()
    return model, exported(model, dynamic=True)


@pytest.mark.parametrize("preset", MEANING)
def test_presets_mean_what_they_do_by_hand(preset: str, program: Export) -> None:
    quantized, _ = through(program[1], preset, DYNAMIC, STATIC if MEANING[preset].static else None)
    assert_same(quantized, by_hand(program[0], preset, STATIC, HEAD), DYNAMIC)


@pytest.mark.parametrize("preset", ["mxfp4-all", "mxfp4-mxint8-all", "nvfp4-all", "int8-all"])
def test_presets_of_every_activation(preset: str, program: Export) -> None:
    through(program[1], preset, DYNAMIC, STATIC)


@pytest.mark.parametrize(("attention", "dtype", "dynamic", "decomposed"), SOME)
def test_forms_of_attention(attention: str, dtype: torch.dtype, dynamic: bool, decomposed: bool) -> None:
    _assert_forms(attention, dtype, dynamic, decomposed, ["mxfp4-mxint8"])


@pytest.mark.full
@pytest.mark.parametrize(("attention", "dtype", "dynamic", "decomposed"), EVERY)
def test_every_form_with_every_preset(
    attention: str, dtype: torch.dtype, dynamic: bool, decomposed: bool
) -> None:
    # bs.fake_quantize with a given scale fixes the shape that it is exported with.
    presets = [name for name in MEANING if not (MEANING[name].static and dynamic and decomposed)]
    _assert_forms(attention, dtype, dynamic, decomposed, presets)


def _assert_forms(
    attention: str, dtype: torch.dtype, dynamic: bool, decomposed: bool, presets: list[str]
) -> None:
    model = Llama(attention, dtype, layers=1)
    float_program = exported(model, dynamic=dynamic, decomposed=decomposed)
    inputs = DYNAMIC if dynamic else STATIC
    for preset in presets:
        quantized, _ = through(float_program, preset, inputs, STATIC)
        reference = by_hand(model, preset, STATIC, HEAD)
        if decomposed:  # which may change bits of the float arithmetic
            reference = exported(reference, dynamic=dynamic, decomposed=True).module()
        assert_same(quantized, reference, inputs)


@pytest.mark.parametrize(("form", "dynamic"), [*((form, True) for form in FORMS), ("mixed", False)])
def test_forms_of_linear_layers(form: str, dynamic: bool) -> None:
    """A block whose linear layers view, reshape or transpose what they read."""
    block = Block(form)
    inputs = [hidden(), hidden(seed=1), *[hidden(3, 11)] * dynamic]
    float_program = exported(block, dynamic=dynamic, args=hidden())
    turned = form in ("transpose", "mixed")
    for preset in ("mxfp4", "int8-int8-token", "int8"):
        quantized, proof = through(float_program, preset, inputs, inputs[:1], in_order=turned)
        assert_same(quantized, by_hand(block, preset, inputs[:1]), inputs)
        combined = optimize(quantized, stages=("canonicalize", *COMBINE, "fold"), check=True)
        assert quantizes(combined) == 4  # of 7 linear layers: q, k and v read one tensor, gate and up another
        assert quantizes(proof.after) == 0


def test_a_block_decomposed() -> None:
    """A transposed linear layer becomes a bmm with its weight repeated as often as the run says."""
    block = Block("mixed", "eager")
    inputs = [hidden(), hidden(3, 11)]
    float_program = exported(block, dynamic=True, decomposed=True, args=inputs[0])
    quantized, proof = through(float_program, "mxfp8", inputs, in_order=True)
    reference = exported(by_hand(block, "mxfp8"), dynamic=True, decomposed=True, args=inputs[0])
    assert_same(quantized, reference.module(), inputs, in_order=True)
    assert quantizes(proof.after) == 0
