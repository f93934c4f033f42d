"""A recipe on a model: annotate → calibrate → fake-quantize, for every kind of model that has an adapter.

What comes out is the fake-quantized model: float arithmetic between quantizes, as training wants it. `optimize`
makes of it, and of anybody's, the graph with explicit quantizes and dequantizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from blockscale.errors import ArgumentError, CalibrationError, CombinationError
from blockscale.graph import models
from blockscale.graph.overlay import Graph
from blockscale.graph.plan import Plan, Point
from blockscale.numerics.calibration import Calibrated, Observer
from blockscale.numerics.observers import observer
from blockscale.passes import annotate, fake_quantize
from blockscale.passes.log import Log
from blockscale.recipe import Explanation, Given
from blockscale.recipe_quark import quark_recipe

# How a static scale is found: the name of a method of `numerics.observers`, (name, options), or a function
# that makes the observer of a point.
Method = str | tuple[str, Mapping[str, Any]] | Callable[[Point], Observer]

# Adapter → what runs its models over calibration data.
_CALIBRATORS = {"blockscale.graph.fx_program": "torch_calibrate", "blockscale.graph.onnx": "onnx_calibrate"}


@dataclass(frozen=True)
class FakeQuantized:
    """`model` is of the kind that was given; `explanation` has every tensor, its rule and its layout."""

    model: Any
    explanation: Explanation
    scales: Mapping[str, Calibrated]


def fake_quantized(
    model: Any, recipe: Given, log: Log, *, calibration: Any = None, method: Method = "minmax",
    gradient: str = "straight", compat: str | None = None, **reading: Any,
) -> FakeQuantized:  # fmt: skip
    """A copy of the model, which shares its weights, with the recipe's fake-quantizes in it.

    calibration  inputs that static scales come from, where the recipe asks for some
    compat       whose placement: "quark" for AMD Quark's, on ONNX models
    reading      what the calibrator of this kind of model takes beside: `libraries` for ONNX
    """
    copy = models.copied(model)
    graph = models.snapshot(copy)
    plan = annotate.annotate(graph, recipe, log) if compat is None else _as_quark(graph, recipe, log)
    scales = _calibrated(model, plan, calibration, method, reading)
    fake_quantize.fake_quantize(plan, scales, log, gradient=gradient)
    return FakeQuantized(models.commit(graph, copy), plan.explain(), scales)


def _as_quark(graph: Graph, recipe: Given, log: Log) -> Plan:
    """The tensors that AMD Quark's quantizer takes, in its dialect."""
    recipe = quark_recipe(recipe)
    found, left = import_module("blockscale.graph.onnx_quark").placed(graph, recipe)
    for one in left:
        log.left(annotate.STAGE, one.node, one.why)
    return annotate.annotate(graph, recipe, log, found=found)


def _calibrated(
    model: Any, plan: Plan, calibration: Any, method: Method, reading: Mapping[str, Any]
) -> dict[str, Calibrated]:
    points = list(plan.static())
    if not points:
        return {}  # data that nothing needs is not read: recipes are compared with one set of arguments
    adapter = models.adapter_of(model).__name__
    calibrator = import_module(f"blockscale.runtime.{_CALIBRATORS[adapter]}")
    observers = {(point.seen, point.key): _observer(method, point) for point in points}
    try:
        found = calibrator.calibrate(model, calibration, observers, **reading)
    except CalibrationError as error:
        raise CalibrationError(f"{error}{_readers(points, str(error))}") from error
    return {key: calibrated for (_, key), calibrated in found.items()}


def _readers(points: Sequence[Point], message: str) -> str:
    """Which operators read the tensor that a message is about: names of tensors are the graph's, not the user's."""
    for point in points:
        name = repr(point.value.name)
        if message.startswith((name, repr(point.seen))) or f"calibration of {point.key!r}" in message:
            return f"\n{name} is {point.edges[0].operand}"
    return ""


def _observer(method: Method, point: Point) -> Observer:
    if isinstance(method, str):
        return observer(method, point.scheme, name=point.key)
    if isinstance(method, tuple) and len(method) == 2:
        return observer(method[0], point.scheme, name=point.key, **method[1])
    if not callable(method):
        raise ArgumentError(
            "method",
            method,
            "a method's name, (name, options), or a function of a point that gives an observer",
        )
    made = method(point)
    if not isinstance(made, Observer):
        raise CombinationError(f"method({point.key!r}) gave a {type(made).__name__}; an Observer is wanted")
    return made
