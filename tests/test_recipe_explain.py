"""`explain`, and what is said of rules that never apply."""

from __future__ import annotations

import io
import json
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from rich.console import Console

import blockscale.api  # noqa: F401  it lists the tensors of models
from blockscale.errors import ArgumentError, RecipeError
from blockscale.recipe import Recipe, Rule
from models.onnx_nets import CASES
from models.small_llm import model, one, tensor

# ------------------------------------------------------------------------------------ unused rules


def problem(*rules: Rule) -> str:
    with pytest.raises(RecipeError) as caught:
        Recipe(rules, "mine").assign(model())
    return str(caught.value)


@pytest.mark.parametrize(
    ("rule", "hint"),
    [
        (Rule("mxfp4", name="layers.0.mlp.upp"), "fits 'layers.0.mlp.upp'; did you mean 'layers.0.mlp.up'?"),
        (Rule("mxfp4", name="*.mlp.dwon"), "did you mean 'layers.0.mlp.down'?"),
        (Rule("mxfp4", name=r"re:layers\.\d+\.mlp\.dwn"), "did you mean 'layers.0.mlp.down'?"),
        (Rule("mxfp4", name="lm_haed*"), "did you mean 'lm_head'?"),
        (Rule("mxfp4", tensor="embed.wieght"), "No tensor fits 'embed.wieght'; did you mean 'embed.weight'?"),
        (Rule("mxfp4", kind="lineer"), "No kind fits 'lineer'; did you mean 'linear'?"),
        (Rule("mxfp4", name="zzz"), "No name fits 'zzz'; there are 'embed', 'layers.0.norm', "),
        (Rule("mxfp4", name="lm_head", use="attention"), "The nearest is input 0 'lm_head_input'"),
        (Rule("mxfp4", name="lm_head", use="attention"), "but for its use"),
        (Rule("mxfp4", dtype="bf16", role="weight"), "but for its dtype"),
    ],
)  # fmt: skip
def test_unused_rules_offer_the_nearest(rule: Rule, hint: str) -> None:
    message = problem(rule, Rule("mxfp4", use="linear"))
    assert message.startswith(f"recipe 'mine': rule 1 ({rule}) matches nothing. ")
    assert hint in message


def test_every_unused_rule_is_told() -> None:
    lines = problem(Rule("mxfp4", name="a"), Rule("mxfp4"), Rule("mxfp4", name="b")).split("\n")
    assert [line.split(" (")[0] for line in lines] == ["recipe 'mine': rule 1", "recipe 'mine': rule 3"]


def test_rules_that_others_hide() -> None:
    hidden = Rule("mxfp4", name="layers.0.mlp.up", role="weight")
    message = problem(Rule("mxint8", name="*.up"), hidden)
    assert (
        "rule 2 (mxfp4, name=layers.0.mlp.up, role=weight) never applies: rule 1 (mxint8, name=*.up)"
        in message
    )
    assert message.endswith("comes first for all that it matches. Put it before, or remove it")
    both = problem(
        Rule("mxint8", name="*.up"), Rule("float", name="*.down"), Rule("mxfp4", name="*.mlp.[ud]*")
    )
    assert "rule 1 (mxint8, name=*.up) and rule 2 (float, name=*.down) comes first" in both


def test_optional_rules_may_match_nothing() -> None:
    recipe = Recipe([Rule("mxfp4", name="a", optional=True), Rule("mxfp4", use="linear")])
    assert any(assignment.scheme for assignment in recipe.assign(model()))


def test_a_preset_that_finds_nothing_is_an_error() -> None:
    norms = [operand for operand in model() if operand.use == "norm"]
    with pytest.raises(RecipeError, match=r"no tensor gets a layout\. The nearest is input 0"):
        Recipe.preset("mxfp4").assign(norms)
    with pytest.raises(RecipeError, match="The model has no tensor that could be quantized"):
        Recipe.preset("mxfp4").assign([])
    everything_else = Recipe([Rule("float")], base="mxfp4")
    with pytest.raises(RecipeError, match="A float rule comes first for"):
        everything_else.assign(model())


def test_a_recipe_that_quantizes_nothing_on_purpose() -> None:
    assert all(a.scheme is None for a in Recipe([]).assign(model()))
    assert all(a.scheme is None for a in Recipe([Rule("float")]).assign(model()))


# ------------------------------------------------------------------------------------ explain


RECIPE = Recipe([Rule("float", name="lm_head"), Rule("mxfp4", name="layers.0.mlp.*", role="weight")], "mine")


def test_explain_lists_every_tensor() -> None:
    rows = RECIPE.explain(model()).to_dict()["tensors"]
    assert [(row["node"], row["role"], row["index"]) for row in rows] == [
        (o.node, o.role, o.index) for o in model()
    ]
    by_tensor = {row["tensor"]: row for row in rows}
    assert by_tensor["lm_head.weight"] == {
        "node": "lm_head", "kind": "linear", "role": "weight", "index": 1, "tensor": "lm_head.weight",
        "dtype": "f32", "shape": [1000, 64], "rule": 1, "layout": "float", "dynamic": None,
        "why": "rule 1 (float, name=lm_head)",
    }  # fmt: skip
    assert by_tensor["layers.0.mlp.up.weight"]["layout"] == "mxfp4, 32 along axis -1"
    assert by_tensor["layers.0.mlp.up.weight"]["rule"] == 2
    assert by_tensor["layers.0.add_input"]["rule"] is None


def test_explain_as_text() -> None:
    text = str(
        RECIPE.explain([one("input"), one("weight"), tensor("lm_head", "linear", "input", "linear", (4,))])
    )
    assert text == (
        "recipe mine\n"
        "rule 1: float, name=lm_head\n"
        "rule 2: mxfp4, name=layers.0.mlp.*, role=weight\n"
        "\n"
        "node      kind    role      tensor           shape    rule  layout\n"
        "block.fc  linear  input 0   block.fc_input   ?×16×96  -     float\n"
        "block.fc  linear  weight 1  block.fc.weight  64×96    -     float\n"
        "lm_head   linear  input 0   lm_head_input    4        1     float\n"
        "problem: rule 2 (mxfp4, name=layers.0.mlp.*, role=weight) matches nothing. "
        "No name fits 'layers.0.mlp.*'; there are 'block.fc', 'lm_head'."
    )


def test_explain_never_fails_for_what_assign_refuses() -> None:
    explanation = Recipe([Rule("int8-channel", role="input")]).explain([one("input")])
    (row,) = explanation.to_dict()["tensors"]
    assert row["layout"] == "impossible"
    (told,) = explanation.problems
    assert "it has no output channels" in told


def test_explain_as_data_and_for_rich() -> None:
    explanation = RECIPE.explain(model())
    assert json.loads(explanation.to_json()) == explanation.to_dict()
    console = Console(file=io.StringIO(), width=200)
    console.print(explanation)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "recipe mine" in shown and shown.count("mxfp4, 32 along axis -1") == 2


def test_layouts_are_told_by_their_place() -> None:
    told = {
        layout: Recipe([Rule(layout, role="weight")])
        .explain([one("weight")])
        .to_dict()["tensors"][0]["layout"]
        for layout in ("int8", "int8-channel", "int8-token", "int4-g16", "nvfp4")
    }
    assert told == {
        "int8": "int8, whole tensor",
        "int8-channel": "int8, each index of axis 0",
        "int8-token": "int8, all along axis -1",
        "int4-g16": "int4, 16 along axis -1",
        "nvfp4": "nvfp4, 16 along axis -1",
    }
    blocks = Rule("mxfp4", role="weight", axis=(0, 1), block=(4, 8))
    assert Recipe([blocks]).explain([one("weight")]).to_dict()["tensors"][0]["layout"] == (
        "mxfp4, 4 along axis 0 × 8 along axis 1"
    )


def test_what_is_no_model() -> None:
    with pytest.raises((ArgumentError, TypeError), match="int"):
        RECIPE.explain(4)


def test_what_onnx_gives(tmp_path: Path) -> None:
    proto = CASES["language model"].proto()
    onnx.save(proto, tmp_path / "model.onnx")
    by_model = Recipe.preset("mxfp4").explain(ir.from_proto(proto)).to_dict()
    assert Recipe.preset("mxfp4").explain(proto).to_dict() == by_model
    assert Recipe.preset("mxfp4").explain(tmp_path / "model.onnx").to_dict() == by_model
    with pytest.raises(ArgumentError, match=r"a file that exists"):
        Recipe.preset("mxfp4").explain("no.onnx")
