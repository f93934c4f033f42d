"""Annotate: which tensor of a graph gets which layout, by a recipe. Nothing is changed yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from blockscale.graph.operands import Edge, edges
from blockscale.graph.overlay import Graph
from blockscale.graph.plan import Plan, Point
from blockscale.numerics.layout import bind
from blockscale.numerics.scheme import Scheme
from blockscale.passes.log import Log
from blockscale.recipe import Assignment, Recipe, recipe_of

STAGE = "annotate"


def annotate(graph: Graph, recipe: Recipe | str, log: Log | None = None) -> Plan:
    """The plan of a recipe, or of what `recipe_of` takes for one.

    RecipeError: a rule never applies, or an operator cannot take what a rule asks for.
    """
    recipe = recipe_of(recipe)
    found = edges(graph)
    assignments = recipe.assign([edge.operand for edge in found])
    if log is not None:
        _tell(graph, found, assignments, log)
    return Plan(graph, recipe, tuple(assignments), _points(found, assignments))


def _points(found: Sequence[Edge], assignments: Sequence[Assignment]) -> tuple[Point, ...]:
    """Equal layouts on one tensor are one point."""
    together: dict[Hashable, list[Edge]] = {}
    schemes: dict[Hashable, tuple[Scheme, tuple[int, ...]]] = {}
    for edge, assignment in zip(found, assignments, strict=True):
        scheme = assignment.scheme
        if scheme is None:
            continue
        block = _block(edge, scheme)
        # What is written to while the graph runs is another tensor for each of its readers.
        reader = (edge.node, edge.slot) if edge.value in edge.graph.mutated else None
        key = (edge.graph, edge.value, scheme.numbers, block, reader)
        together.setdefault(key, []).append(edge)
        schemes.setdefault(key, (scheme, block))
    taken: Counter[str] = Counter()
    points = []
    for point, at in together.items():
        scheme, block = schemes[point]
        value = at[0].value
        points.append(Point(_name(value.name, taken), at[0].graph, value, scheme, block, tuple(at)))
    return tuple(points)


def _block(edge: Edge, scheme: Scheme) -> tuple[int, ...]:
    numbers = edge.graph.numbers(edge.value)
    assert numbers is not None  # tensors of unknown rank are no operands
    return bind(scheme, numbers).block


def _name(hint: str, taken: Counter[str]) -> str:
    taken[hint] += 1
    return hint if taken[hint] == 1 else f"{hint}#{taken[hint]}"


def _tell(graph: Graph, found: Sequence[Edge], assignments: Sequence[Assignment], log: Log) -> None:
    for edge, assignment in zip(found, assignments, strict=True):
        operand = edge.operand
        if assignment.scheme is not None:
            log.did(
                STAGE, edge.node, f"{operand.role} {operand.index}: {assignment.scheme} by {assignment.why}"
            )
    for one in graph.walk():
        for node in one.nodes:
            if node.kind == "raw" and node.outputs:
                log.left(STAGE, node, node.params.get("why") or f"{node.call.name} is not known")
