"""What a recipe makes of a graph, as data: one `Point` for each distinct tensor and layout.

`passes.annotate` makes a plan, calibration gives scales to those of its points that need some, and
`passes.fake_quantize` writes it into the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from blockscale.graph.operands import Edge
from blockscale.graph.overlay import Graph
from blockscale.graph.view import Value
from blockscale.numerics.scheme import Scheme
from blockscale.recipe import Assignment, Explanation, Recipe


@dataclass(frozen=True)
class Point:
    """A tensor that gets a layout.

    key     names it in the mapping of calibrated parameters
    block   of `scheme` on this tensor, one entry a dimension
    edges   where it is so: the output of the operator that makes it, operands of those that read it. Where
            it is an output, also operands that are this tensor after a reshape and the like
    """

    key: str
    graph: Graph
    value: Value
    scheme: Scheme
    block: tuple[int, ...]
    edges: tuple[Edge, ...]

    @property
    def is_output(self) -> bool:
        """Whether all that read the tensor get it so."""
        return any(edge.slot is None for edge in self.edges)

    @property
    def seen(self) -> str:
        """The tensor, as calibration finds it; where memory is written to, as it is when its reader reads it."""
        name = f"{self.graph.prefix}{self.value.name}"
        reads = self.value in self.graph.mutated and not self.is_output
        return f"{name}@{self.edges[0].node.name}" if reads else name

    @property
    def is_static(self) -> bool:
        """Whether its parameters come from calibration."""
        return not self.scheme.dynamic


@dataclass(frozen=True)
class Plan:
    """assignments are in the order of `operands.edges`, one for each tensor at each operator."""

    graph: Graph
    recipe: Recipe
    assignments: tuple[Assignment, ...]
    points: tuple[Point, ...]

    def static(self) -> Iterator[Point]:
        """What calibration has to see: `point.value` while the float model runs, by `point.scheme`."""
        return (point for point in self.points if point.is_static)

    def explain(self) -> Explanation:
        return Explanation(self.recipe, self.assignments, ())
