"""What lies between two tensors: paths through the graph, bodies included, and names that are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import blockscale as bs
from blockscale import Rule
from blockscale.errors import RecipeError
from blockscale.graph.operands import operands_of
from blockscale.model_api import adapted

#        x → stem → a → left → l ─┐
#                   └→ right → r ─┴→ add → s → head → y        z → side → r2 (read by head2 alone)
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 32] x, float[2, 32] z, bool c) => (float[2, 32] y, float[2, 32] w, float[2, 32] v) {
    [stem] a = MatMul (x, A) [left] l = MatMul (a, B) [right] r = Relu (a) [add] s = Add (l, r) [head] y = MatMul (s, C)
    [side] t = MatMul (z, A) [mix] w = MatMul (t, B)
    [choice] v = If (c) <then_branch = one () => (float[2, 32] p) { [inner] p = MatMul (r, C) },
                         else_branch = two () => (float[2, 32] q) { q = Identity (r) }>
}"""


def model() -> Any:
    proto = onnx.parser.parse_model(TEXT)
    for i, name in enumerate("ABC"):
        array = np.random.default_rng(i).standard_normal((32, 32)).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return proto


def between(start: Any, end: Any) -> set[str]:
    rule = Rule("float", between=(start, end))
    assert rule.between is not None
    return {o.node for o in operands_of(adapted(model()), [rule.between]) if rule.matches(o)}


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("a", "s", "left right add"),
        ("x", "y", "stem left right add head"),
        ("stem", "s", "stem left right add"),  # an operator takes part itself
        ("a", "head", "left right add head"),
        ("l", "y", "add head"),
        (["l", "t"], ["y", "w"], "add head mix"),
        ("A", "w", "side mix"),
        ("a", "v", "right inner"),  # and with it what its bodies hold
        ("a", "a", ""),
        ("left", "left", "left"),
    ],
)
def test_between(start: Any, end: Any, expected: str) -> None:
    if not expected:
        with pytest.raises(RecipeError, match=r"no operator lies between"):
            between(start, end)
        return
    assert between(start, end) == set(expected.split())


def test_wrong_names() -> None:
    with pytest.raises(
        RecipeError, match=r"between = x … yy: the model has no tensor and no operator 'yy'; did you mean 'y'"
    ):
        between("x", "yy")
    with pytest.raises(RecipeError, match="the other way round"):
        between("y", "x")


def test_leaving_out_and_taking_alone() -> None:
    def weights(*rules: Rule) -> dict[str, str]:
        rows = bs.quantize_model(model(), list(rules)).report.tensors
        return {row["node"]: row["layout"].split(",")[0] for row in rows if row["role"] == "weight"}

    out = weights(Rule("float", between=("a", "s")), Rule("mxfp8_e4m3"))
    alone = weights(Rule("mxfp8_e4m3", between=("a", "s")))
    assert {node for node, layout in out.items() if layout == "float"} == {"left"}
    assert {node for node, layout in alone.items() if layout != "float"} == {"left"}


def test_recipes_explain_it() -> None:
    text = "rules:\n- {layout: mxfp8_e4m3, between: [a, [s, y]]}\n- {layout: mxint8, op_type: MatMul, role: weight}"
    rows = bs.Recipe.from_yaml(text).explain(model()).rows
    assert {row.operand.node: row.rule_number for row in rows if row.operand.role == "weight"} == {
        "stem": 2, "left": 1, "head": 1, "side": 2, "mix": 2, "inner": 2,
    }  # fmt: skip
