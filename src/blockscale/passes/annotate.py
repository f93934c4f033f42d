"""Annotate: which tensor of a graph gets which layout, by a recipe. Nothing is changed yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence

from blockscale.graph.operands import Edge, edges
from blockscale.graph.ops import SILENT
from blockscale.graph.overlay import Graph
from blockscale.graph.plan import Plan, Point
from blockscale.graph.view import Value
from blockscale.numerics.follow import Moved
from blockscale.numerics.layout import Layout, bind
from blockscale.numerics.moves import Move
from blockscale.numerics.scheme import Scheme
from blockscale.numerics.through import same_blocks, through
from blockscale.passes.log import Log
from blockscale.recipe import Assignment, Given, recipe_of
from blockscale.recipe_rules import DTYPES

STAGE = "annotate"


def annotate(
    graph: Graph, recipe: Given, log: Log | None = None, *, found: Sequence[Edge] | None = None
) -> Plan:
    """The plan of a recipe, or of what `recipe_of` takes for one.

    found  the tensors that the recipe is asked about, where they are not those of `edges`
    RecipeError: a rule never applies, or an operator cannot take what a rule asks for.
    """
    recipe = recipe_of(recipe)
    found = edges(graph, recipe.regions) if found is None else found
    assignments = recipe.assign([edge.operand for edge in found])
    if log is not None:
        _tell(graph, found, assignments, log)
    wanted = [(e, a.scheme) for e, a in zip(found, assignments, strict=True) if a.scheme is not None]
    return Plan(graph, recipe, tuple(assignments), tuple(_Points(wanted)))


class _Points:
    """Equal layouts on one tensor are one point; so are those that an output's layout brings along.

    A tensor that is quantized where it is made, and then reshaped, need not be quantized again for a reader
    that wants what the reshape makes of that layout.
    """

    def __init__(self, wanted: Iterable[tuple[Edge, Scheme]]) -> None:
        self._edges: dict[Hashable, list[Edge]] = {}
        self._places: dict[Hashable, tuple[Scheme, Layout]] = {}
        self._made_as: dict[Value, Hashable] = {}  # tensor → key of the layout that its output has
        for edge, scheme in sorted(wanted, key=lambda one: one[0].slot is not None):  # outputs first
            self._add(edge, scheme)

    def __iter__(self) -> Iterator[Point]:
        taken: Counter[str] = Counter()
        for key, at in self._edges.items():
            scheme, layout = self._places[key]
            value = at[0].value
            taken[value.name] += 1
            count = taken[value.name]
            name = value.name if count == 1 else f"{value.name}#{count}"
            yield Point(name, at[0].graph, value, scheme, layout.block, tuple(at))

    def _add(self, edge: Edge, scheme: Scheme) -> None:
        layout = _layout(edge, scheme)
        # What is written to while the graph runs is another tensor for each of its readers.
        reader = (edge.node, edge.slot) if edge.value in edge.graph.mutated else None
        key: Hashable = (edge.graph, edge.value, scheme.numbers, layout.block, reader)
        if edge.slot is None:
            self._made_as[edge.value] = key
        else:
            carried = self._carried(edge, layout)
            key = key if carried is None else carried
        self._edges.setdefault(key, []).append(edge)
        self._places.setdefault(key, (scheme, layout))

    def _carried(self, edge: Edge, wanted: Layout) -> Hashable | None:
        """The output whose layout is the wanted one after what lies between."""
        value, path = edge.value, list[tuple[Move, int]]()
        while value not in self._made_as:
            node = value.producer
            if node is None or node.kind not in SILENT or "move" not in node.params:
                return None
            source = node.operand(0)
            if source is None or node.kind == "cat" or source in edge.graph.mutated:
                return None
            path.append((node.params["move"], value.index))
            value = source
        layout = self._places[self._made_as[value]][1]
        for move, index in reversed(path):
            moved = through(layout, move)
            if not isinstance(moved, Moved):
                return None
            layout = moved.after[index]
        return self._made_as[value] if same_blocks(layout, wanted) else None


def _layout(edge: Edge, scheme: Scheme) -> Layout:
    numbers = edge.graph.numbers(edge.value)
    assert numbers is not None  # tensors of unknown rank are no operands
    return bind(scheme, numbers)


def _tell(graph: Graph, found: Sequence[Edge], assignments: Sequence[Assignment], log: Log) -> None:
    for edge, assignment in zip(found, assignments, strict=True):
        operand = edge.operand
        if assignment.scheme is not None:
            what = f"{operand.role} {operand.index}: {assignment.scheme}"
            log.did(STAGE, edge.node, f"{what} by {assignment.why}")
        elif assignment.rule_number is None and operand.dtype not in DTYPES:
            log.left(
                STAGE, edge.node, f"{operand.role} {operand.index} is {operand.dtype}, which has no layouts"
            )
    for one in graph.walk():
        for node in one.nodes:
            if node.kind == "raw" and node.outputs:
                log.left(STAGE, node, node.params.get("why") or f"{node.call.name} is not known")
