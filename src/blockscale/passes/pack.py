"""Pack: constants whose quantizer only fake-quantizes become codes of `ocp` with the very same values.

AMD Quark's arithmetic has no codes, nor have sub-blocks (MX9, MX6, MX4), yet what they make of a usual weight
lies on a grid of `ocp`, with the scales that `ocp` finds in it; that of sub-blocks on one of wider elements. That
is tried on the weight itself, all its bits; where one is another the weight stays float.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from blockscale.errors import BlockscaleError
from blockscale.graph.constants import placed
from blockscale.graph.overlay import Graph
from blockscale.graph.quant import layout_of, lost_in_codes, quant_of
from blockscale.graph.quantizers import our_dequantize
from blockscale.graph.view import Const, Meta, Node
from blockscale.numerics import native
from blockscale.numerics.arrays import NUMPY
from blockscale.numerics.blocking import per_element
from blockscale.numerics.layout import Layout
from blockscale.numerics.scheme import Numbers
from blockscale.passes.log import Log

STAGE = "pack"


def run(graph: Graph, log: Log) -> None:
    for node in graph.nodes:
        if node.kind != "fake_quantize" or quant_of(node).foreign is not None:
            continue
        x = node.operand(0)
        known = None if x is None else placed(graph, x)
        if known is None or not lost_in_codes(quant_of(node).numbers) or node.operand(1) is not None:
            continue
        layout = layout_of(node, graph.alphabet)
        if isinstance(layout, str):
            log.left(STAGE, node, layout)
            continue
        packed = _Packed(known, layout)
        twin = packed.twin()
        if twin is None:
            why = f"{known.name}: its values in {layout.numbers} are not those of codes of ocp"
            log.left(STAGE, node, why)
            continue
        _replace(graph, node, known.name, twin, packed)
        log.did(STAGE, node, f"{known.name} became codes of {twin.numbers}, of the same values")
        graph.discard([node])


class _Packed:
    """A weight is read for the trial, and again when the model is written: it is not held in between."""

    def __init__(self, known: Const, layout: Layout) -> None:
        self.known, self.layout = known, layout

    def _codes(self) -> tuple[Layout, Any, native.Stored] | None:
        return _codes(np.asarray(self.known.fetch(), order="C"), self.layout)

    def twin(self) -> Layout | None:
        found = self._codes()
        return None if found is None else found[0]

    @cached_property
    def contents(self) -> tuple[Any, Any]:
        found = self._codes()
        assert found is not None
        return found[1], found[2].scales


def _codes(x: Any, layout: Layout) -> tuple[Layout, Any, native.Stored] | None:
    """Of `ocp`, if they decode to what the dialect gives."""
    try:
        numbers = _with_codes(layout.numbers)
    except BlockscaleError:
        return None
    if numbers.why_no_codes:
        return None
    twin = Layout(numbers, layout.shape, layout.block)
    values = native.fake_quantize(x, layout)
    for codes, stored in _candidates(x, values, twin):
        back = native.dequantize(codes, twin, stored, _FORMATS[values.dtype.name])
        if back.tobytes() == values.tobytes():
            return twin, codes, stored
    return None


def _candidates(x: Any, values: Any, twin: Layout) -> Iterator[tuple[Any, native.Stored]]:
    """Codes of the values as `ocp` finds them; and of integers those in the scales of x itself, -128 among them."""
    yield native.quantize(values, twin)
    element = twin.numbers.element_format
    if element.is_fixed and not element.packed and np.isfinite(values).all():
        stored = native.choose_params(x, twin)
        scale = per_element(NUMPY, np.asarray(stored.scales, np.int64) - 127, twin)
        codes = np.rint(np.ldexp(values.astype(np.float64), element.mantissa_bits - scale))
        limits = np.iinfo(element.storage_dtype)
        yield np.clip(codes, limits.min, limits.max).astype(element.storage_dtype), stored


def _with_codes(numbers: Numbers) -> Numbers:
    """Of `ocp`, with elements so wide that the steps of sub-blocks are steps of the block."""
    plain = replace(numbers, dialect="ocp", rounding="half_even", rule="floor", sub_block=0, sub_shift=0)
    if not numbers.sub_block:
        return plain
    finest = (1 << numbers.sub_shift) - 1
    return replace(plain, element=f"bfp{numbers.element_format.bits + 8 + finest}")


_FORMATS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def _replace(graph: Graph, node: Node, name: str, twin: Layout, packed: _Packed) -> None:
    meta = node.outputs[0].meta
    assert meta is not None
    dtype = twin.numbers.element_format.storage_dtype.name
    codes = graph.constant(lambda: packed.contents[0], f"{name}_codes", Meta(dtype, twin.codes_shape))
    scale = graph.constant(lambda: packed.contents[1], f"{name}_scale", Meta("uint8", twin.scale_shape))
    quant = our_dequantize(twin.numbers, twin.block, meta.dtype)
    made = graph.make(
        "dequantize", [codes, scale], [meta], {"quant": quant}, near=node, name=f"{node.name}_dq"
    )
    graph.replace(node.outputs[0], made.outputs[0])
