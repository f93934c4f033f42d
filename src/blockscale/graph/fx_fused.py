"""Fused nodes → calls of torch operators."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from blockscale.graph.fused import ROWS
from blockscale.graph.fused_fields import FLOAT, Fields, arguments_of, fields_of
from blockscale.graph.fused_nodes import Port, read
from blockscale.graph.torch_names import overload_named
from blockscale.graph.view import Node
from blockscale.numerics.layout import Layout
from blockscale.numerics.scheme import Numbers

if TYPE_CHECKING:
    from blockscale.graph.fx_make import Made, Operands
    from blockscale.graph.fx_write import Writer


def fused_call(w: Writer, node: Node, operands: Operands) -> Made:
    parts = read(node)
    count = len(parts.row.operands)
    first = count + len(parts.row.rest_tensors)
    pairs = list(zip(operands[first::2], operands[first + 1 :: 2], strict=True))
    ports = [*node.params["ports"], node.params["out"]]
    *fields, out = [_fields(w, port, *pair) for port, pair in zip(ports, pairs, strict=True)]
    compute = getattr(torch, parts.compute) if parts.compute != "float32" else None
    args, settings = arguments_of(parts.row, operands[:count], fields, out, compute)
    settings |= dict(zip(parts.row.rest_tensors, operands[count:first], strict=True))
    settings |= {name: _written(value) for name, value in parts.settings.items()}
    operator = overload_named(parts.row.operator(dynamic=out.kind == "dynamic"))
    return operator, args, settings


def _fields(w: Writer, port: Port | None, scale: Any, slot: Any) -> Fields:
    if port is None:
        return FLOAT
    numbers = port.numbers
    form = _form(numbers, w.overlay.alphabet.numbers(port.shape), port.block, scale is not None)
    zero = slot if numbers.tensor_scale or numbers.zero_point else None
    return form._replace(scale=scale, zero_point=zero, block=None if form.block is None else list(form.block))


@lru_cache(maxsize=4096)
def _form(numbers: Numbers, shape: tuple[int, ...], block: tuple[int, ...], given: bool) -> Fields:
    """The fields but for the tensors in them; `given`: there is a scale."""
    layout = Layout(numbers if given else replace(numbers, dynamic=True), shape, block)
    return fields_of(layout, given or None)


def _written(value: Any) -> Any:
    return [_written(v) for v in value] if isinstance(value, tuple) else value


FUSED_MAKERS = {row.kind: fused_call for row in ROWS}
