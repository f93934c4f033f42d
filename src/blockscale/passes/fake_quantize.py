"""Fake-quantize: a plan written into its graph, one node for each of its points.

An output that has a layout is quantized once, for all that read it. An operand that wants another layout
than its producer gives is quantized again, as hardware does that keeps tensors so.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np

from blockscale.errors import ArgumentError, CalibrationError, ScaleError
from blockscale.graph.dims import blocked
from blockscale.graph.plan import Plan, Point
from blockscale.graph.quant import SCALE_DTYPES
from blockscale.graph.quantizers import ours
from blockscale.graph.view import Meta, Node, Value
from blockscale.numerics.calibration import Calibrated
from blockscale.passes.log import Log

STAGE = "fake_quantize"


def fake_quantize(
    plan: Plan, scales: Mapping[str, Calibrated] | None = None, log: Log | None = None, *,
    gradient: str = "straight",
) -> None:  # fmt: skip
    """Insert the points of `plan`; `scales` has an entry for each `point.key` of `plan.static()`.

    gradient  of training: `straight` through, or `clipped` to 0 where a value is out of range
    """
    scales = scales or {}
    _check(plan, scales)
    quantized: dict[Value, Value] = {}  # outputs
    for point in sorted(plan.points, key=lambda point: not point.is_output):
        source = quantized.get(point.value, point.value)
        made = _made(point, source, scales.get(point.key), gradient)
        result = made.outputs[0]
        if point.is_output:
            uses = [use for use in source.uses if use[0] is not made and use[0].kind != "assert"]
            point.graph.replace(source, result, uses)
            quantized[point.value] = result
        else:
            for edge in point.edges:
                assert edge.slot is not None
                point.graph.set_slot(edge.node, edge.slot, result)
        if log is not None:
            readers = ", ".join(dict.fromkeys(edge.operand.node for edge in point.edges))
            log.did(STAGE, made, f"{point.scheme} on {point.value.name} for {readers}")


def _made(point: Point, source: Value, given: Calibrated | None, gradient: str) -> Node:
    operands: list[Value | None] = [source]
    if given is not None:
        operands += _parameters(point, given)
    while operands[-1] is None:
        operands.pop()
    params = {"quant": ours(point.scheme.numbers, point.block, gradient=gradient), "gradient": gradient}
    return point.graph.make(
        "fake_quantize",
        operands,
        [source.meta],
        params,
        near=point.edges[0].node,
        name=f"{point.value.name}_fq",
    )


def _parameters(point: Point, given: Calibrated) -> list[Value | None]:
    """Scale, zero point and tensor scale as constants of the graph."""
    numbers = point.scheme.numbers
    assert point.value.meta is not None
    shape = blocked(point.value.meta.shape, point.block)
    if numbers.tensor_scale:
        return [None, None, _constant(point, "tensor_scale", given.tensor_scale, "float32", ())]
    scale = _constant(point, "scale", given.scales, SCALE_DTYPES[numbers.scale], shape)
    if not numbers.zero_point:
        return [scale]
    return [scale, _constant(point, "zero_point", given.zero_points, "int32", shape)]


def _constant(point: Point, name: str, array: Any, dtype: str, shape: Any) -> Value:
    if array is None or np.shape(array) != shape or str(np.asarray(array).dtype) != dtype:
        found = "none" if array is None else f"{np.asarray(array).dtype}{list(np.shape(array))}"
        raise ScaleError(f"{name} of {point.key!r}", found, f"{dtype}{list(shape)} for {point.scheme}")
    return point.graph.constant(np.asarray(array), f"{point.value.name}_{name}", Meta(dtype, shape))


def _check(plan: Plan, scales: Mapping[str, Calibrated]) -> None:
    wanted = {point.key: point for point in plan.static()}
    missing = [point for key, point in wanted.items() if key not in scales]
    if missing:
        first = missing[0].edges[0].operand
        raise CalibrationError(
            f"{len(missing)} of {len(wanted)} tensors with static scales were not calibrated, the first for "
            f"{first}: {missing[0].scheme}. Calibrate with typical inputs, or take scales that need none: "
            "a layout of MX, or dynamic=True in the rule"
        )
    for key in scales:
        if key not in wanted:
            close = get_close_matches(key, wanted, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ArgumentError("scales", key, f"no tensor of the plan that wants static scales{hint}")
