"""Fused operators in a model → params of the view (`fused_nodes`)."""

from __future__ import annotations

from typing import Any

from blockscale.errors import BlockscaleError
from blockscale.graph.args import Args, Unreadable
from blockscale.graph.dims import Dims
from blockscale.graph.fused import FUSED_OPS, OUT, RESULTS, Fused, row_named
from blockscale.graph.fused_fields import Fields, element_of, numbers_of
from blockscale.graph.fused_nodes import Port, frozen
from blockscale.graph.view import Meta
from blockscale.numerics.layout import block_of_scale


def read_fused(name: str, a: Args) -> dict[str, Any]:
    """On stand-in sizes, as every reader of params."""
    row = row_named(FUSED_OPS[name].kind)
    dynamic = name == row.operator(dynamic=True)
    try:
        ports = tuple(
            _port(a, one.name, a.meta(one.name) if a.value(one.name) is not None else None)
            for one in row.operands
        )
        out = _port(a, OUT, a.out(0))
    except BlockscaleError as error:
        raise Unreadable(str(error)) from None
    _check_outputs(row, a, dynamic)
    settings = {n: a.get(n) for n in row.rest_names if n in a.others}
    return {"ports": ports, "out": out, "settings": frozen(settings), "compute": _compute(row, a, ports)}


def _check_outputs(row: Fused, a: Args, dynamic: bool) -> None:
    wanted = (len(RESULTS) if dynamic else 1) + len(row.also)
    if len(a.outs) != wanted:
        raise Unreadable(f"it has {len(a.outs)} known outputs, not {wanted}")


def _port(a: Args, name: str, meta: Meta | None) -> Port | None:
    """Of an operand, or of the output, which has codes in `meta` wherever it has a port."""
    dtype = a.get(f"{name}_dtype", "")
    if not dtype or meta is None:
        return None
    scale = a.value(f"{name}_scale")
    zero = a.value(f"{name}_zero_point")
    block, last = a.get(f"{name}_block"), a.get(f"{name}_last")
    fields = Fields(scale, zero, dtype, a.get(f"{name}_quant_min"), a.get(f"{name}_quant_max"), block, last)
    scale_meta = None if scale is None else a.meta(f"{name}_scale")
    has_zero = zero is not None and a.meta(f"{name}_zero_point").shape != (0,)
    numbers = numbers_of(fields, None if scale_meta is None else scale_meta.dtype, has_zero)
    codes = name == OUT or scale is not None
    shape = _values(a, fields, meta.shape) if codes else meta.shape
    if block is None:
        if scale_meta is None:
            raise Unreadable(f"the block of {name} is not given")
        block = block_of_scale(a.alphabet.numbers(shape), a.alphabet.numbers(scale_meta.shape))
    if len(block) != len(shape):
        raise Unreadable(f"the block of {name} has {len(block)} entries for {len(shape)} dimensions")
    return Port(numbers, tuple(int(b) for b in block), shape)


def _values(a: Args, fields: Fields, stored: Dims) -> Dims:
    """Shape of the values that codes stand for."""
    element = element_of(fields)
    if not element.packed or not stored:
        return stored
    if fields.last is not None:
        return (*stored[:-1], int(fields.last))
    bits = a.alphabet.number(stored[-1]) * 8
    return (*stored[:-1], a.alphabet.dim(bits // element.bits))


def _compute(row: Fused, a: Args, ports: tuple[Port | None, ...]) -> str:
    given = a.get("compute")
    if given is not None:
        return str(given).removeprefix("torch.")
    for one, port in zip(row.operands, ports, strict=True):
        is_codes = port is not None and a.value(f"{one.name}_scale") is not None
        if a.value(one.name) is not None and not is_codes:
            return a.meta(one.name).dtype
    return "float32"


READ_FUSED = {row.kind: read_fused for row in FUSED_OPS.values()}
