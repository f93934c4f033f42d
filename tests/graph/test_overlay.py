"""The overlay: edits in any order, uses that always agree with slots, nodes sorted once, dead ones swept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockscale.graph import invariants
from blockscale.graph.overlay import Graph
from blockscale.graph.view import Call, Meta, Node, Value

META = Meta("float32", (4,))


def op(g: Graph, *slots: Value | None, pure: bool = True, kind: str = "raw", outputs: int = 1) -> Node:
    """A node of the model."""
    name = f"n{len(g._all)}"
    node = Node(Call(kind, "op", tuple(range(len(slots))), pure=pure), list(slots), name, len(g._all))
    node.outputs = [Value(f"{name}_{i}", META, node, i) for i in range(outputs)]
    return g.add_node(node)


def chain() -> tuple[Graph, list[Node], Node]:
    g = Graph()
    x = g.add_input(Value("x", META))
    first = op(g, x)
    second = op(g, first.outputs[0])
    end = op(g, second.outputs[0], pure=False, kind="output", outputs=0)
    return g, [first, second], end


def test_uses_follow_slots() -> None:
    g, (first, second), end = chain()
    x = g.inputs[0]
    g.replace(second.outputs[0], x)
    assert not second.outputs[0].used and (end, 0) in x.uses and end.dirty and g.changed
    g.set_slot(end, 0, None)
    assert first in x.users and end not in x.users


def test_a_value_that_is_used_twice_has_one_user() -> None:
    g = Graph()
    x = g.add_input(Value("x", META))
    node = op(g, x, x)
    assert x.users == [node] and len(x.uses) == 2


def test_setting_what_is_there_changes_nothing() -> None:
    g, (first, _), _ = chain()
    g.set_slot(first, 0, g.inputs[0])
    assert not g.changed and not first.dirty


def test_a_new_node_stands_before_the_first_that_needs_it() -> None:
    g, (first, second), end = chain()
    made = g.make("neg", [first.outputs[0]], [META], near=first)
    g.set_slot(second, 0, made.outputs[0])
    assert g.nodes == [first, made, second, end]


def test_what_is_needed_earlier_moves_forward() -> None:
    g = Graph()
    x = g.add_input(Value("x", META))
    early, late = op(g, x), op(g, x)
    end = op(g, early.outputs[0], late.outputs[0], pure=False, kind="output", outputs=0)
    g.set_slot(early, 0, late.outputs[0])
    assert g.nodes == [late, early, end]
    invariants.check(g, "editing")


def test_a_cycle_is_found() -> None:
    g, (first, second), _ = chain()
    g.set_slot(first, 0, second.outputs[0])
    with pytest.raises(AssertionError, match="cycle"):
        _ = g.nodes


def test_what_is_not_used_is_swept_with_what_only_it_needs() -> None:
    g, (first, second), end = chain()
    g.replace(second.outputs[0], g.inputs[0])
    assert g.sweep() == 2 and g.nodes == [end]
    assert first not in g and not g.inputs[0].uses.keys() - {(end, 0)}


def test_effects_and_what_they_read_stay() -> None:
    g, (first, _), end = chain()
    effect = op(g, first.outputs[0], pure=False)
    assert g.sweep() == 0 and effect in g
    assert g.discard([effect]) == 0 and end in g


def test_a_check_lives_as_long_as_what_it_checks() -> None:
    g, (first, second), end = chain()
    check = op(g, second.outputs[0], kind="assert", outputs=0)
    assert second.outputs[0].users == [end] and g.sweep() == 0
    g.set_slot(end, 0, first.outputs[0])
    g.sweep()
    assert check not in g and second not in g


def test_a_clone_of_a_new_node_is_like_the_same_original() -> None:
    g, (first, _), end = chain()
    one = g.clone(first, [g.inputs[0]], [META], {"dim": 1})
    other = g.clone(one, [one.outputs[0]], [META], {"size": 2})
    assert other.made_by is not None and other.made_by.like is first
    assert dict(other.made_by.changes) == {"dim": 1, "size": 2}
    made = g.make("neg", [other.outputs[0]], [META], near=first)
    again = g.clone(made, [made.outputs[0]], [META])
    assert again.made_by is not None and again.made_by.like is None
    g.set_slot(end, 0, again.outputs[0])
    assert g.nodes == [first, one, other, made, again, end]
    assert len({node.name for node in g.nodes}) == len(g.nodes)


def test_dropping_it_is_the_rollback() -> None:
    g, nodes, end = chain()
    assert not g.changed and g.nodes == [*nodes, end]


def test_deep_graphs_do_not_recurse() -> None:
    g = Graph()
    value = g.add_input(Value("x", META))
    for _ in range(20_000):
        value = op(g, value).outputs[0]
    op(g, value, pure=False, kind="output", outputs=0)
    assert len(g.nodes) == 20_001
    assert g.sweep() == 0


@given(st.data(), st.integers(2, 12))
def test_random_edits(data: st.DataObject, size: int) -> None:
    """Whatever is rewired without a cycle stays sound, and only what the output needs is left."""
    g = Graph()
    values = [g.add_input(Value("x", META))]
    for _ in range(size):
        values.append(op(g, *data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))).outputs[0])
    end = op(g, data.draw(st.sampled_from(values)), pure=False, kind="output", outputs=0)
    for _ in range(data.draw(st.integers(0, 8))):
        node = data.draw(st.sampled_from(list(g._all)))
        earlier = [v for v in values if v.producer is None or v.producer.order < node.order]
        if node is end:
            earlier = values
        g.set_slot(node, data.draw(st.integers(0, len(node.slots) - 1)), data.draw(st.sampled_from(earlier)))
    g.sweep()
    invariants.check(g, "editing")
    needed: set[Node] = set()
    pending = [end]
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            pending += [v.producer for v in node.slots if v is not None and v.producer is not None]
    assert set(g.nodes) == needed
    places = {node: i for i, node in enumerate(g.nodes)}
    for node in g.nodes:
        assert all(places[v.producer] < places[node] for v in node.slots if v is not None and v.producer)
