"""The part of a graph that lies between two tensors: the operators on any way from the one to the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches

from blockscale.errors import RecipeError
from blockscale.graph.overlay import Graph
from blockscale.graph.view import Node, Value
from blockscale.recipe_rules import Region


def nodes_between(graph: Graph, region: Region) -> set[Node]:
    """Of the graph, with all nodes of bodies that one of them holds.

    Where it begins, a tensor stands for what reads it; where it ends, for what makes it. The name of an operator,
    where no tensor has it, stands for the operator itself. RecipeError: a name of nothing, or no way.
    """
    starts, ends = region
    begin: dict[Node, None] = {}
    for name in starts:
        found = _found(graph, name, region)
        begin.update(dict.fromkeys(found.users if isinstance(found, Value) else [found]))
    end: dict[Node, None] = {}
    for name in ends:
        found = _found(graph, name, region)
        made = found.producer if isinstance(found, Value) else found
        end.update({} if made is None else {made: None})
    after = _closure(begin, lambda node: (user for value in node.outputs for user in value.users))
    before = _closure(end, _makers)
    nodes = after & before
    if not nodes:
        raise RecipeError(
            f"between = {_text(region)}: no operator lies between these; is the order the other way round?"
        )
    held = {
        node for holder, body in graph.bodies if holder in nodes for one in body.walk() for node in one.nodes
    }
    return nodes | held


def _closure(begin: Iterable[Node], next_of: Callable[[Node], Iterable[Node]]) -> set[Node]:
    found = set(begin)
    pending = list(found)
    while pending:
        fresh = [node for node in next_of(pending.pop()) if node not in found and node.kind != "output"]
        found.update(fresh)
        pending += fresh
    return found


def _makers(node: Node) -> Iterator[Node]:
    return (value.producer for value in node.slots if value is not None and value.producer is not None)


def _found(graph: Graph, name: str, region: Region) -> Value | Node:
    made = [value for node in graph.nodes for value in node.outputs]
    values = {value.name: value for value in (*graph.constants, *graph.inputs, *made)}
    nodes = {node.name: node for node in graph.nodes if node.kind != "output"}
    found = values.get(name) or nodes.get(name)
    if found is None:
        close = get_close_matches(name, [*values, *nodes], n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise RecipeError(
            f"between = {_text(region)}: the model has no tensor and no operator {name!r}{hint}"
        )
    return found


def _text(region: Region) -> str:
    return " … ".join(", ".join(names) for names in region)
