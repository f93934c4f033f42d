"""What is known of the magnitudes that a float tensor can have, whatever the model is run on."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from blockscale.graph.overlay import Graph
from blockscale.graph.quant import layout_of, quant_of
from blockscale.graph.survival import contents
from blockscale.graph.view import Node, Value
from blockscale.numerics.formats import FORMATS
from blockscale.numerics.through import PLACING


class Bounds(NamedTuple):
    """Of what is neither 0, NaN nor Inf."""

    least: float
    greatest: float


_ANYTHING = Bounds(2.0**-149, FORMATS["f32"].max)
_SELECT = ("relu", "max_pool")


def bounds_of(graph: Graph, value: Value) -> Bounds:
    """Of decoded codes with static scales, of wider integers and floats; also after what only selects."""
    while value.producer is not None:
        node = value.producer
        if type(node.params.get("move")) not in PLACING and node.kind not in _SELECT:
            break
        source = node.operand(0)
        if source is None or value in graph.mutated:
            return _ANYTHING
        value = source
    node_ = value.producer
    if node_ is None or value in graph.mutated:
        return _ANYTHING
    if node_.kind == "dequantize" and quant_of(node_).foreign is None:
        return _decoded(graph, node_)
    if node_.kind == "cast":
        source = node_.operand(0)
        if source is not None and source.meta is not None and source.meta.dtype == "float16":
            return Bounds(2.0**-24, FORMATS["f16"].max)
    return _ANYTHING


def _decoded(graph: Graph, node: Node) -> Bounds:
    layout = layout_of(node, graph.alphabet)
    scales = contents(node.operand(1))
    numbers = quant_of(node).numbers
    if isinstance(layout, str) or scales is None or numbers.family != "affine" or not scales.size:
        return _ANYTHING
    element = numbers.element_format
    steps = element.max
    if element.is_fixed:
        steps = 2.0 ** (8 * element.storage_dtype.itemsize)  # more than any code is from any zero point
    wide = np.asarray(scales).astype(np.float64)
    least, greatest = (
        float(wide.min()) * (1.0 if element.is_fixed else element.smallest),
        float(wide.max()) * steps,
    )
    return Bounds(least, min(greatest, _ANYTHING.greatest)) if math.isfinite(greatest) else _ANYTHING


def constant_bounds(graph: Graph, value: Value) -> Bounds | None:
    """Of a constant, or of codes that are one; None where it is neither."""
    array = contents(value)
    if array is None:
        return None if decoded_constant(value) is None else bounds_of(graph, value)
    wide = np.abs(array.astype(np.float64))
    wide = wide[wide != 0]
    return Bounds(float(wide.min()), float(wide.max())) if wide.size else Bounds(1.0, 0.0)


def decoded_constant(value: Value) -> Node | None:
    """The dequantize of constant codes that a value is, also after moves."""
    while value.producer is not None and type(value.producer.params.get("move")) in PLACING:
        source = value.producer.operand(0)
        if source is None:
            return None
        value = source
    node = value.producer
    known = node is not None and node.kind == "dequantize" and contents(node.operand(0)) is not None
    return node if known else None
