"""Rules: which tensors they are about, and which scheme a tensor gets."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from blockscale.errors import ArgumentError, BlockscaleError, CombinationError, RecipeError, UnknownNameError
from blockscale.numerics.layout import bind
from blockscale.numerics.scheme import Scheme, scheme_named
from blockscale.recipe import Assignment, Operand, Recipe, Rule
from models.small_llm import linear, model, one, tensor


def hits(rule: Rule) -> set[str]:
    return {f"{o.node}:{o.role}" for o in model() if rule.matches(o)}


def nodes(rule: Rule) -> set[str]:
    return {o.node for o in model() if rule.matches(o)}


def given(rule: Rule, operand: Operand) -> Scheme | None:
    (assignment,) = Recipe([rule]).assign([operand])
    return assignment.scheme


# ------------------------------------------------------------------------------------ conditions


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"name": "layers.0.mlp.up"}, {"layers.0.mlp.up"}),
        ({"name": "*.mlp.*"}, {"layers.0.mlp.up", "layers.0.mlp.gelu", "layers.0.mlp.down"}),
        ({"name": "*.mlp.[ud]*"}, {"layers.0.mlp.up", "layers.0.mlp.down"}),
        ({"name": r"re:layers\.\d+\.mlp\.(up|down)"}, {"layers.0.mlp.up", "layers.0.mlp.down"}),
        ({"name": "re:mlp"}, set()),  # a regular expression fits the whole name
        ({"name": ("lm_head", "*.q_proj")}, {"lm_head", "layers.0.q_proj"}),
        ({"tensor": "*.up.weight"}, {"layers.0.mlp.up"}),
        ({"kind": "sdpa"}, {"layers.0.sdpa"}),
        ({"kind": ("gelu", "rms_norm")}, {"layers.0.mlp.gelu", "layers.0.norm"}),
        ({"use": "residual"}, {"layers.0.add"}),
        ({"use": ("norm", "embedding")}, {"layers.0.norm", "embed"}),
        ({"head": True}, {"lm_head"}),
        ({"index": 2}, {"layers.0.sdpa"}),
        ({"use": "linear", "head": False}, {"layers.0.q_proj", "layers.0.mlp.up", "layers.0.mlp.down"}),
        ({"min_size": 16384}, {"embed", "layers.0.mlp.up", "layers.0.mlp.down", "lm_head"}),
        ({"max_size": 4096}, {"layers.0.q_proj"}),
        ({"min_size": 16384, "max_size": 16384}, {"layers.0.mlp.up", "layers.0.mlp.down"}),
        ({"min_rank": 4}, {"layers.0.sdpa"}),
        ({"dtype": "bf16"}, set()),
        ({"name": "*.mlp.*", "kind": "gelu"}, {"layers.0.mlp.gelu"}),
    ],
)
def test_conditions(conditions: dict[str, Any], expected: set[str]) -> None:
    assert nodes(Rule("mxfp4", **conditions)) == expected


def test_names_of_the_framework() -> None:
    """A rule may say Conv where OPS says conv, and the name that the model has where a path was made of it."""
    operand = replace(one("weight"), op_type="Gemm", alias="/fc/Gemm")
    assert Rule("mxfp4", op_type=("Conv", "Gemm")).matches(operand)
    assert Rule("mxfp4", name="/fc/*").matches(operand) and Rule("mxfp4", name=operand.node).matches(operand)
    assert not Rule("mxfp4", op_type="gemm").matches(operand)
    assert not Rule("mxfp4", name="*Gemm").matches(replace(operand, alias=""))


def test_between_is_asked_of_the_graph() -> None:
    rule = Rule("mxfp4", between=("x", ["y", "z"]))
    assert rule.between == (("x",), ("y", "z")) and Recipe([rule, rule]).regions == (rule.between,)
    assert not rule.matches(one("weight"))
    assert rule.matches(replace(one("weight"), regions=frozenset([rule.between])))
    assert str(rule) == "mxfp4, between=x…y|z"


def test_a_rule_for_any_model_leaves_what_has_no_layouts() -> None:
    operands = [one("weight", dtype="f64"), one("input")]
    found = Recipe.preset("mxfp4").assign(operands)
    assert [row.scheme is None for row in found] == [True, False]
    with pytest.raises(RecipeError, match="its dtype is f64"):
        Recipe.preset("mxfp4").assign(operands[:1])


def test_roles() -> None:
    everything = {f"{o.node}:{o.role}" for o in model()}
    assert hits(Rule("float")) == everything
    assert hits(Rule("mxfp4")) == {hit for hit in everything if hit.endswith((":input", ":weight"))}
    for role in ("input", "weight", "bias", "output"):
        assert hits(Rule("mxfp4", role=role)) == {hit for hit in everything if hit.endswith(role)}
    assert hits(Rule("mxfp4", role=("bias", "output"))) == hits(Rule("mxfp4", role="bias")) | hits(
        Rule("mxfp4", role="output")
    )


def test_dtype() -> None:
    half = one("input", dtype="bf16")
    assert Rule("mxfp4", dtype="bf16").matches(half) and Rule("mxfp4", dtype=("f16", "bf16")).matches(half)
    assert not Rule("mxfp4", dtype="f16").matches(half)


def test_unknown_size_meets_no_condition_on_it() -> None:
    unknown = one("input")
    assert unknown.size is None
    assert not Rule("mxfp4", min_size=0).matches(unknown)
    assert not Rule("mxfp4", max_size=1 << 60).matches(unknown)
    assert Rule("mxfp4", min_rank=3).matches(unknown)


def test_failed_names_the_conditions_that_are_not_met() -> None:
    rule = Rule("mxfp4", name="x.*", role="output", kind="linear")
    assert rule.failed(one("input")) == ["name", "role"]
    assert Rule("mxfp4", name="block.*").failed(one("input")) == []


# ------------------------------------------------------------------------------------ who wins


def layouts(recipe: Recipe) -> dict[str, str | None]:
    return {
        f"{a.operand.node}:{a.operand.role}": None if a.scheme is None else a.scheme.element
        for a in recipe.assign(model())
    }


def test_first_rule_wins() -> None:
    narrow, wide = Rule("mxint8", name="*.mlp.*", role="weight"), Rule("mxfp4", use="linear", role="weight")
    found = layouts(Recipe([narrow, wide]))
    assert found["layers.0.mlp.up:weight"] == "mxint8"
    assert found["layers.0.q_proj:weight"] == "fp4_e2m1"
    assert found["layers.0.mlp.up:input"] is None
    with pytest.raises(RecipeError, match=r"rule 2 .* never applies: rule 1 .* comes first"):
        Recipe([wide, narrow]).assign(model())


def test_float_keeps_a_tensor_from_later_rules() -> None:
    found = layouts(Recipe([Rule("float", name="lm_head"), Rule("mxfp4", use="linear")]))
    assert found["lm_head:weight"] is None and found["lm_head:input"] is None
    assert found["layers.0.mlp.down:weight"] == "fp4_e2m1"


def test_rule_numbers_count_from_one() -> None:
    rules = [Rule("float", name="lm_head"), Rule("mxfp4", use="linear")]
    by_node: dict[str, Assignment] = {a.operand.node: a for a in Recipe(rules).assign(model())}
    assert (by_node["lm_head"].rule_number, by_node["lm_head"].rule) == (1, rules[0])
    assert by_node["layers.0.add"].rule_number is None
    assert by_node["layers.0.add"].why == "no rule matches"


# ------------------------------------------------------------------------------------ the scheme


@pytest.mark.parametrize(
    ("layout", "setting", "field", "value"),
    [
        ("mxfp4", {"axis": 0}, "axis", (0,)),
        ("mxfp4", {"axis": (0, 1), "block": (8, 4)}, "block", (8, 4)),
        ("mxfp4", {"axis": [0, 1], "block": [8, 4]}, "axis", (0, 1)),
        ("mxfp4", {"block": 16}, "block", (16,)),
        ("mxfp4", {"rule": "rceil"}, "rule", "rceil"),
        ("mxfp4", {"rounding": "half_away"}, "rounding", "half_away"),
        ("mxfp4", {"dialect": "quark"}, "dialect", "quark"),
        ("int8", {"dynamic": False}, "dynamic", False),
        ("int8", {"scale": "bf16"}, "scale", "bf16"),
        ("int8", {"zero_point": True}, "zero_point", True),
        ("int8", {"quant_min": -127}, "quant_min", -127),
        ("uint8", {"quant_max": 254}, "quant_max", 254),
    ],
)
def test_settings(layout: str, setting: dict[str, Any], field: str, value: object) -> None:
    rule = Rule(layout, role="input", **setting)
    scheme = given(rule, one("input"))
    assert scheme is not None and getattr(scheme, field) == value
    assert getattr(scheme_named(layout), field) != value
    assert str(rule).startswith(f"{layout}, role=input, ")


def test_settings_in_the_name() -> None:
    assert (
        Rule("int4-g128,rule=no_clip,scale=bf16").scheme
        == Rule("int4-g128", rule="no_clip", scale="bf16").scheme
    )


def test_symmetric_and_asymmetric_go_with_the_zero_point() -> None:
    assert Rule("int8", zero_point=True).scheme.rule == "asymmetric"  # type: ignore[union-attr]
    assert Rule("int8", zero_point=True, rule="symmetric").scheme.rule == "symmetric"  # type: ignore[union-attr]


def test_a_scheme_is_a_layout() -> None:
    scheme = Scheme(element="fp8_e4m3", axis=(-2, -1), block=(16, 16))
    assert given(Rule(scheme), one("weight")) == scheme


CONV = tensor("conv", "conv", "weight", "linear", (8, 32, 3, 3), axis=1, channel=0)


@pytest.mark.parametrize(
    ("layout", "operand", "block"),
    [
        ("mxfp4", one("input"), (1, 1, 32)),
        ("mxfp4", one("weight"), (1, 32)),
        ("mxfp4", one("weight", axis=0), (32, 1)),
        ("nvfp4", one("weight"), (1, 16)),
        ("int4-g16", one("weight", axis=-2), (16, 1)),
        ("int8-token", one("input"), (1, 1, 0)),
        ("int8-token", one("weight"), (1, 0)),
        ("int8-channel", one("weight"), (1, 0)),
        ("int8", one("input"), (0, 0, 0)),
        ("int8-channel", tensor("mm", "matmul", "weight", "linear", (96, 64), axis=-2, channel=-1), (0, 1)),
        ("mxint8", CONV, (1, 32, 1, 1)),
        ("int8-channel", CONV, (1, 0, 0, 0)),
        ("mxfp4", one("output", axis=None), (1, 1, 32)),
    ],
)  # fmt: skip
def test_axes_come_from_the_operator(layout: str, operand: Operand, block: tuple[int, ...]) -> None:
    scheme = given(Rule(layout, role=operand.role), operand)
    assert scheme is not None
    assert bind(scheme, [2 if n is None else n for n in operand.shape]).block == block


def test_an_axis_of_the_rule_is_kept() -> None:
    scheme = given(Rule("mxfp4", axis=0), one("weight", axis=-1))
    assert scheme is not None and scheme.axes == (0,)
    assert given(Rule("int8-channel", axis=1), one("weight")).axes == (1,)  # type: ignore[union-attr]
    assert given(Rule(Scheme(element="fp4_e2m1", axis=0)), one("weight")).axes == (0,)  # type: ignore[union-attr]


def test_scales_of_constants_come_from_their_values() -> None:
    """Whatever the layout says, weights need no calibration; activations with static scales do."""
    for role in ("weight", "bias"):
        assert given(Rule("int8", role=role, dynamic=False), one(role)).dynamic  # type: ignore[union-attr]
    assert not given(Rule("int8", dynamic=False), one("input")).dynamic  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("layout", "operand", "reason"),
    [
        ("mxfp4", one("input", dtype="f64"), "its dtype is f64, not f32, bf16, f16: cast it"),
        ("mxfp4", tensor("s", "mul", "input", "other", ()), "a scalar has no axis"),
        ("int8-channel", one("input"), "it has no output channels; set axis"),
        ("int8-token,dynamic=false", one("input"), "how many static scales it takes is not known"),
        (Scheme(element="fp4_e2m1", axis=3), one("weight"), "axis = 3: from -2 to 1"),
    ],
)
def test_refusals_say_where_and_what_to_do(layout: str | Scheme, operand: Operand, reason: str) -> None:
    operand = replace(operand, source='File "model.py", line 7, in forward')
    rule = Rule(layout, role=operand.role)
    with pytest.raises(RecipeError, match=re.escape(reason)) as caught:
        Recipe([rule], "mine").assign([operand])
    message = str(caught.value)
    assert message.startswith(f"recipe 'mine', rule 1: {operand.role} {operand.index} ")
    assert repr(operand.node) in message and 'File "model.py", line 7' in message
    # The way out that it names is one.
    (advice,) = re.findall(r"put (Rule\(.*?\)) before it", message)
    way_out = eval(advice, {"Rule": Rule})
    (assignment,) = Recipe([way_out]).assign([operand])
    assert assignment.scheme is None and assignment.rule_number == 1


def test_a_static_tensor_scale_needs_no_known_size() -> None:
    scheme = given(Rule("nvfp4", dynamic=False), one("input"))
    assert scheme is not None and not scheme.dynamic


def test_operands_are_checked() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'weight'"):
        replace(one("input"), role="wieght")
    with pytest.raises(UnknownNameError, match="did you mean 'attention'"):
        tensor("x", "sdpa", "input", "atention", (4,))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"layout": "mxpf4"}, UnknownNameError, "did you mean 'mxfp4'"),
        ({"layout": 4}, ArgumentError, "layout = 4: a preset's name, a Scheme or 'float'"),
        ({"layout": "float", "block": 16}, CombinationError, "takes no block: nothing is quantized"),
        ({"between": "x"}, ArgumentError, "two tensors"),
        ({"between": ("x", None)}, ArgumentError, "two tensors; None names none"),
        ({"between": ("x", "")}, ArgumentError, "a name, or several"),
        ({"between": ("x", "y", "z")}, ArgumentError, "two tensors"),
        ({"op_type": 3}, ArgumentError, "a name, or several"),
        ({"role": "weights"}, UnknownNameError, "did you mean 'weight'"),
        ({"use": "lineer"}, UnknownNameError, "did you mean 'linear'"),
        ({"dtype": "float32"}, UnknownNameError, "allowed are f32, bf16, f16"),
        ({"name": "re:("}, ArgumentError, "a glob, or re: and a regular expression"),
        ({"name": ""}, ArgumentError, "a name, or several"),
        ({"name": ()}, ArgumentError, "a name, or several"),
        ({"kind": 3}, ArgumentError, "a name, or several"),
        ({"min_size": -1}, ArgumentError, "not below 0"),
        ({"min_size": 1.5}, ArgumentError, "an integer"),
        ({"max_size": True}, ArgumentError, "an integer"),
        ({"min_size": 2, "max_size": 1}, CombinationError, "min_size 2 is above max_size 1"),
        ({"head": 1}, ArgumentError, "true or false"),
        ({"optional": "yes"}, ArgumentError, "true or false"),
        ({"axis": "last"}, ArgumentError, "an integer, or several"),
        ({"block": ()}, ArgumentError, "an integer, or several"),
        ({"rule": 1}, ArgumentError, "a name"),
        ({"rule": "flor"}, UnknownNameError, "did you mean 'floor'"),
        ({"dialect": "quarck"}, UnknownNameError, "did you mean 'quark'"),
        ({"dynamic": False}, CombinationError, "MX scales come from the values themselves"),
        ({"layout": "int8", "axis": 0}, BlockscaleError, "this scheme is per tensor"),
    ],
)
def test_bad_rules(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        Rule(**({"layout": "mxfp4"} | arguments))


def test_bad_recipes() -> None:
    with pytest.raises(ArgumentError, match="rule 2 = 'mxfp4': a Rule"):
        Recipe([Rule("float"), "mxfp4"])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match="name = ''"):
        Recipe([], "")


def test_linear_has_all_roles() -> None:
    assert [o.role for o in linear("x", 2, 3)] == ["input", "weight", "bias", "output"]
