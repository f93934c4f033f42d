"""Each invariant of the overlay broken on purpose: the error names the stage, the node and what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from blockscale.errors import GraphError
from blockscale.graph import invariants
from blockscale.graph.fused_nodes import FLOATS, Core, edge_of, make
from blockscale.graph.fx import snapshot
from blockscale.graph.overlay import Graph
from blockscale.graph.quant import quant_of
from blockscale.graph.view import Call, Meta, Node, Value
from blockscale.numerics.moves import Permute, Reshape
from blockscale.numerics.scheme import numbers_named
from blockscale.passes import pipeline
from blockscale.passes.log import Log
from passes.fx_graphs import Builder


def graph() -> Graph:
    """x – reshape – quantize – dequantize – permute."""
    b = Builder()
    view = b.move(b.input(2, 4, 64), Reshape((8, 64)))
    q = b.measure(view, "mxfp8")
    y = b.dequantize(q[:2], view, "mxfp8")
    return snapshot(b.done(b.move(y, Permute((1, 0))), *q[:2]))


def the(g: Graph, kind: str) -> Node:
    (node,) = [node for node in g.nodes if node.kind == kind]
    return node


def changed(node: Node, **params: Any) -> None:
    call = node.call
    node.call = Call(call.kind, call.name, call.operands, {**call.params, **params}, call.pure)


def _forgotten_use(g: Graph) -> None:
    g.inputs[0].uses.clear()


def _foreign_value(g: Graph) -> None:
    node = the(g, "reshape")
    node.outputs = [Value("other", node.outputs[0].meta, node)]


def _removed_producer(g: Graph) -> None:
    node = the(g, "reshape")
    del g._all[node]


def _lost_result(g: Graph) -> None:
    the(g, "permute").outputs = []


def _wrong_shape(g: Graph) -> None:
    the(g, "permute").outputs[0].meta = Meta("float32", (8, 64))


def _wrong_dtype(g: Graph) -> None:
    the(g, "permute").outputs[0].meta = Meta("float16", (64, 8))


def _move_that_does_not_fit(g: Graph) -> None:
    changed(the(g, "permute"), move=Permute((0, 1, 2)))


def _no_layout(g: Graph) -> None:
    node = the(g, "quantize")
    node.call = Call("quantize", node.call.name, node.call.operands, {}, True)


def _block_of_another_rank(g: Graph) -> None:
    node = the(g, "quantize")
    changed(node, quant=quant_of(node).with_block((32,)))


def _scale_of_another_shape(g: Graph) -> None:
    the(g, "quantize").outputs[1].meta = Meta("uint8", (8, 4))


def _codes_of_another_shape(g: Graph) -> None:
    the(g, "quantize").outputs[0].meta = Meta("uint8", (8, 32))


def _other_format(g: Graph) -> None:
    node = the(g, "dequantize")
    changed(node, quant=replace(quant_of(node), numbers=numbers_named("mxint8")))


def _quantized_again(g: Graph) -> None:
    q = the(g, "quantize")
    again = g.clone(q, [q.outputs[0]], [value.meta for value in q.outputs])
    g.set_slot(the(g, "permute"), 0, again.outputs[0])


def _cycle(g: Graph) -> None:
    g.set_slot(the(g, "reshape"), 0, the(g, "permute").outputs[0])


def _port_of_another_shape(g: Graph) -> None:
    dq = the(g, "dequantize")
    edge = edge_of(g, dq)
    assert not isinstance(edge, str) and edge.port is not None
    edges = [replace(edge, port=replace(edge.port, shape=(8, 32)))]
    made = make(g, "relu", edges, FLOATS, [dq.outputs[0].meta], {}, Core((), (), ()), near=dq)
    g.replace(dq.outputs[0], made.outputs[0])


BROKEN: list[tuple[Callable[[Graph], None], str]] = [
    (_forgotten_use, "does not know that slot 0 uses it"),
    (_foreign_value, "is no output of"),
    (_removed_producer, "which was removed"),
    (_lost_result, "gives 1 results, it has 0"),
    (_wrong_shape, r"gives \(64, 8\), stored is \(8, 64\)"),
    (_wrong_dtype, "of float32 gives float32, stored is float16"),
    (_move_that_does_not_fit, "does not fit"),
    (_no_layout, "it has no layout"),
    (_block_of_another_rank, "it has no layout: "),
    (_scale_of_another_shape, r"scale of blocks \(1, 32\) on 8×64 has shape 8×4, its layout wants \(8, 2\)"),
    (_codes_of_another_shape, "codes of blocks"),
    (_other_format, "they were made as"),
    (_quantized_again, "its codes are quantized again"),
    (_port_of_another_shape, "x has shape 8×64, its port in"),
    (_cycle, "the graph has a cycle through"),
]


def test_a_sound_graph_passes() -> None:
    invariants.check(graph(), "reading")


@pytest.mark.parametrize(("breaks", "says"), BROKEN, ids=lambda one: getattr(one, "__name__", ""))
def test_what_is_broken_is_said(breaks: Callable[[Graph], None], says: str) -> None:
    g = graph()
    breaks(g)
    with pytest.raises(GraphError, match=says) as error:
        invariants.check(g, "a stage")
    assert str(error.value).startswith("after a stage: ")


def test_every_rule_is_broken_by_one() -> None:
    """None of the rules is there for nothing."""
    found = set()
    for breaks, _ in BROKEN:
        g = graph()
        breaks(g)
        for rule in invariants.RULES:
            try:
                found.update(rule for node in list(g._all) for _ in rule(g, node))
            except (AssertionError, KeyError):
                found.add(rule)
    assert found == set(invariants.RULES)


def broken_stage(g: Graph, log: Log) -> None:
    _wrong_shape(g)


def test_the_pipeline_names_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pipeline.PASSES, "spoil", broken_stage)
    with pytest.raises(GraphError, match="after spoil: permute"):
        pipeline.run(graph(), ("cse", "spoil", "cse"), Log(), check=True)


@pytest.mark.parametrize(("value", "asked"), [("1", True), ("0", False), ("", False)])
def test_a_user_can_ask_for_the_checks(monkeypatch: pytest.MonkeyPatch, value: str, asked: bool) -> None:
    monkeypatch.setitem(pipeline.PASSES, "spoil", broken_stage)
    monkeypatch.setenv("BLOCKSCALE_CHECK", value)
    if not asked:
        pipeline.run(graph(), ("spoil",), Log())
        return
    with pytest.raises(GraphError, match="after spoil"):
        pipeline.run(graph(), ("spoil",), Log())
