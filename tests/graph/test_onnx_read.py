"""Every ONNX operator of the table is read as its kind, in each form and each opset that it has."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.graph.onnx import snapshot
from blockscale.graph.ops import KIND_OF_ONNX
from blockscale.graph.view import Node
from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import Cat, Move, Pad, Permute, Relu, Reshape, Split
from blockscale.numerics.scheme import numbers_named
from graph.onnx_cases import MOVES, OTHERS, UNREADABLE, Case
from numerics.moving import any_move
from passes.onnx_graphs import Builder, assert_equal, run

CASES = [
    pytest.param(case, opset, id=f"{case.name}, {opset}") for case in MOVES + OTHERS for opset in case.opsets
]


def test_the_cases_are_all_of_the_table() -> None:
    assert {case.op_type for case in MOVES + OTHERS} == set(KIND_OF_ONNX)


def built(case: Case, opset: int) -> tuple[Builder, list[Node], Node]:
    b = Builder(opset)
    made = case.made(b)
    outputs = made if isinstance(made, list) else [made]
    graph = snapshot(b.done(*outputs))
    (node,) = [n for n in graph.nodes if n.origin is outputs[0].producer()]
    return b, graph.nodes, node


@pytest.mark.parametrize(("case", "opset"), CASES)
def test_kind_operands_and_params(case: Case, opset: int) -> None:
    _, _, node = built(case, opset)
    assert node.call.name == f"ai.onnx::{case.op_type}"
    assert (node.kind, node.call.operands) == (case.kind, case.operands), node.params
    assert dict(node.params) == dict(case.params)


@pytest.mark.parametrize(("case", "opset"), [param for param in CASES if "move" in param.values[0].params])
def test_a_move_is_what_the_operator_does(case: Case, opset: int) -> None:
    b, _, node = built(case, opset)
    b = Builder(opset)
    made = case.made(b)
    assert_applied(node.params["move"], b, made)


def assert_applied(move: Move, b: Builder, made: object) -> None:
    wanted = run(b.done(*(made if isinstance(made, list) else [made])), b.examples)
    with np.errstate(over="ignore"):
        found = move.apply(b.examples if isinstance(move, Cat) else b.examples[0])
    assert_equal(list(found) if isinstance(move, Split) else [np.asarray(found)], wanted)


@settings(max_examples=200)
@given(st.data(), st.lists(st.sampled_from((0, 1, 1, 2, 3, 4, 6)), min_size=1, max_size=4))
def test_random_moves(data: st.DataObject, shape: list[int]) -> None:
    layout = Layout(numbers_named("int8"), tuple(shape), (0,) * len(shape))
    more = st.sampled_from(
        (Pad(tuple((0, 1) for _ in shape)), Relu(), Permute(tuple(range(len(shape)))[::-1]))
    )
    move = data.draw(st.one_of(any_move(layout), any_move(layout), more))
    empty = isinstance(move, Reshape) and 0 in move.target  # a 0 keeps a size before opset 14
    b = Builder(data.draw(st.sampled_from((18, 24) if empty else (13, 18, 24))))
    made = b.move(b.input(*shape), move)
    outputs = made if isinstance(made, list) else [made]
    values = list(b.examples)
    model = b.done(*outputs)
    for node in snapshot(model).nodes:  # one, or of a roll one an axis
        if node.kind == "output" or node.kind == "identity":
            continue
        assert "move" in node.params, node.params
        found = node.params["move"].apply(values[0])
        values = list(found) if isinstance(found, tuple) else [np.asarray(found)]
    assert_equal(values, run(model, b.examples))


@pytest.mark.parametrize(("name", "made", "why"), UNREADABLE, ids=[row[0] for row in UNREADABLE])
def test_what_the_kind_has_no_words_for_stays_raw(name: str, made: object, why: str) -> None:
    _, _, node = built(Case(name, made, "raw"), 18)  # type: ignore[arg-type]
    assert node.kind == "raw" and why in node.params["why"]
    assert node.call.pure == (name != "Dropout in training")
