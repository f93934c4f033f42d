"""Presets, against the sentences that define them (docs/recipes.md)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockscale.errors import BlockscaleError, CombinationError, UnknownNameError
from blockscale.numerics.scheme import PRESETS, Scheme, scheme_named
from blockscale.recipe import Recipe, names
from models.small_llm import model

MX = ("mxfp4", "mxfp6", "mxfp8", "mxint8")


def found(preset: str) -> dict[str, Scheme | None]:
    """`node:role index` → scheme, with axes as they are bound."""
    assigned = Recipe.preset(preset).assign(model())
    return {f"{a.operand.node}:{a.operand.role}": a.scheme for a in assigned}


def quantized(preset: str) -> set[str]:
    return {where for where, scheme in found(preset).items() if scheme is not None}


LINEARS = ("layers.0.q_proj", "layers.0.mlp.up", "layers.0.mlp.down", "lm_head")
WEIGHTS = {f"{node}:weight" for node in LINEARS} | {"embed:weight"}
INPUTS = {f"{node}:input" for node in LINEARS}


@pytest.mark.parametrize("name", MX)
def test_one_name_is_for_weights_and_inputs(name: str) -> None:
    """… of linear; norms, attention, residuals, biases and outputs stay float."""
    assert quantized(name) == WEIGHTS | INPUTS
    up = found(name)
    assert up["layers.0.mlp.up:weight"] == up["layers.0.mlp.up:input"] == scheme_named(name)


@pytest.mark.parametrize("name", ["mxfp4", "mxfp6", "mxfp6_e3m2", "nvfp4", "mxfp4-float", "mxfp6-mxfp8"])
def test_embedding_and_head_have_8_bit_weights(name: str) -> None:
    schemes = found(name)
    assert schemes["embed:weight"] == schemes["lm_head:weight"] == scheme_named("mxint8")
    assert schemes["layers.0.mlp.up:weight"] == scheme_named(name.partition("-")[0])


@pytest.mark.parametrize("name", ["int4-g128", "int4-g32-float", "uint4-g32", "int6-float"])
def test_affine_embedding_and_head_are_int8_a_row(name: str) -> None:
    schemes = found(name)
    # One scale a row: of the embedding along its last axis, of the head for each output channel.
    assert schemes["embed:weight"] == scheme_named("int8-token")
    assert schemes["lm_head:weight"] == scheme_named("int8-channel")
    assert schemes["layers.0.mlp.up:weight"].element_format.bits < 8  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["mxfp8", "mxint8", "mxfp8_e5m2-float"])
def test_8_bit_presets_are_the_same_everywhere(name: str) -> None:
    schemes = found(name)
    assert schemes["embed:weight"] == schemes["lm_head:weight"] == schemes["layers.0.mlp.up:weight"]


def test_pair_is_weight_and_input() -> None:
    schemes = found("mxfp4-mxint8")
    assert schemes["layers.0.mlp.up:weight"] == scheme_named("mxfp4")
    assert schemes["layers.0.mlp.up:input"] == scheme_named("mxint8")
    assert schemes["lm_head:input"] == scheme_named("mxint8")


@pytest.mark.parametrize("name", ["mxfp4-float", "int4-g128-float", "int8-float", "nvfp4-float"])
def test_float_is_for_weights_alone(name: str) -> None:
    assert quantized(name) == WEIGHTS


def test_int8_is_static_per_tensor_and_per_channel() -> None:
    schemes = found("int8")
    inputs, weight = schemes["layers.0.mlp.up:input"], schemes["layers.0.mlp.up:weight"]
    assert inputs == scheme_named("int8,dynamic=false")
    assert weight == scheme_named("int8-channel")
    assert found("int8-dynamic")["layers.0.mlp.up:input"] == scheme_named("int8")
    assert found("int8-token")["layers.0.mlp.up:input"] == scheme_named("int8-token")
    assert found("uint8")["layers.0.mlp.up:input"].zero_point  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["mxfp4-all", "mxfp8-all", "mxfp4-mxint8-all", "int8-all"])
def test_all_is_for_every_other_activation(name: str) -> None:
    everything = {f"{o.node}:{o.role}" for o in model()}
    assert quantized(name) == {where for where in everything if not where.endswith(":bias")}
    schemes = found(name)
    inputs = schemes["layers.0.mlp.up:input"]
    assert inputs is not None
    for where in ("layers.0.add:input", "layers.0.sdpa:output", "layers.0.norm:input", "lm_head:output"):
        assert schemes[where].numbers == inputs.numbers  # type: ignore[union-attr]
    weights = found(name.removesuffix("-all"))
    assert {w: schemes[w] for w in WEIGHTS} == {w: weights[w] for w in WEIGHTS}


def test_settings_reach_weights_and_inputs() -> None:
    schemes = found("mxfp4,rule=rceil-mxint8,rule=ceil")
    assert schemes["layers.0.mlp.up:weight"].rule == "rceil"  # type: ignore[union-attr]
    assert schemes["layers.0.mlp.up:input"].rule == "ceil"  # type: ignore[union-attr]
    assert schemes["lm_head:weight"] == scheme_named("mxint8,rule=rceil")
    assert found("int4-g64,rule=no_clip,scale=bf16-float")["embed:weight"] == scheme_named(
        "int8-token,rule=no_clip,scale=bf16"
    )
    # NVFP4's only rule is none of MX.
    assert found("nvfp4,dialect=ocp")["embed:weight"] == scheme_named("mxint8")


def test_every_name_is_a_recipe() -> None:
    assert len(set(names())) == len(names()) > 30
    assert set(PRESETS) - {"int8-channel"} <= set(names())
    for name in names():
        recipe = Recipe.preset(name)
        assert recipe.name == name and recipe.rules
        assert all(rule.optional for rule in recipe.rules)
        recipe.assign(model())


WEIGHT_LAYOUTS = st.sampled_from(PRESETS)
INPUT_LAYOUTS = st.sampled_from([name for name in PRESETS if name != "int8-channel"])


@given(WEIGHT_LAYOUTS, INPUT_LAYOUTS, st.sampled_from(["", "-all"]))
def test_any_pair_is_a_preset(weight: str, inputs: str, everything: str) -> None:
    schemes = found(f"{weight}-{inputs}{everything}")
    alone = found(f"{weight}-float")
    assert {w: schemes[w] for w in WEIGHTS} == {w: alone[w] for w in WEIGHTS}
    assert schemes["lm_head:input"].numbers == found(inputs)["lm_head:input"].numbers  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("mxpf4", UnknownNameError, "did you mean 'mxfp4'"),
        ("mxfp4-mxint9", UnknownNameError, "did you mean 'mxfp4-mxint8'"),
        ("", UnknownNameError, "preset = ''"),
        ("float", UnknownNameError, "preset = 'float'"),
        ("mxfp4-all-all", UnknownNameError, "preset = 'mxfp4-all-all'"),
        ("mxfp4-float-all", CombinationError, "write 'mxfp4-float', or a second layout"),
        ("mxfp4-dynamic", CombinationError, "-dynamic is for one scale a tensor"),
        ("int8-channel", CombinationError, "they have no output channels; write 'int8'"),
        ("mxfp4-int8-channel", CombinationError, "'int8-channel-float' for weights alone"),
        ("mxfp4,rule=flor", BlockscaleError, "did you mean 'floor'"),
        ("int8-g0-float", BlockscaleError, "a positive group size"),
    ],
)
def test_bad_names(name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        Recipe.preset(name)
