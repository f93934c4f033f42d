"""Packed codes in standard operators: an LSB-first stream of bits along the last dimension.

n codes lie in g whole bytes. A group is read as one integer; a code is what is left of it after a division
and modulo a power of two. (Bitwise operators would do the same; these every version has.)
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from blockscale.forms.blocks import in_runs
from blockscale.forms.body import Body
from blockscale.numerics.formats import Format


def _group(bits: int) -> tuple[int, int]:
    """Codes and bytes of a group."""
    whole = math.lcm(bits, 8)
    return whole // bits, whole // 8


def _integers(bits: int) -> tuple[ir.DataType, type[np.generic]]:
    """That hold a group."""
    return (ir.DataType.INT32, np.int32) if math.lcm(bits, 8) < 31 else (ir.DataType.INT64, np.int64)


def values(b: Body, stored: ir.Value, element: Format, rank: int, last: int | None) -> ir.Value:
    """float32 of packed codes; two of them are looked up at once. `last`: the length of the last dimension
    where the bytes do not say it.
    """
    if rank == 0:
        stored = b("Unsqueeze", stored, b.i64([0]))
    axis = max(rank, 1) - 1
    two = np.arange(1 << 2 * element.bits)
    table = element.decode(np.stack([two, two >> element.bits], -1))
    pairs = b("Gather", b.f32(table), _pairs(b, stored, element.bits, axis))
    count = b("Mul", b.size_of(pairs, axis), b.i64([2]))
    found = b.reshaped(pairs, *_before(b, pairs, axis), count)
    if last is not None and (rank == 0 or last % _group(element.bits)[0]):
        found = b("Slice", found, b.i64([0]), b.i64([last]), b.i64([-1]))
    return b("Squeeze", found, b.i64([0])) if rank == 0 else found


def _pairs(b: Body, stored: ir.Value, bits: int, axis: int) -> ir.Value:
    """int32: the bits of codes 0 and 1, of 2 and 3, …"""
    n, g = _group(bits)
    whole = b.cast(stored, ir.DataType.INT32)
    if (n, g) == (2, 1):
        return whole
    kind, number = _integers(bits)
    wide = b.cast(whole, kind)
    if g > 1:
        pieces = b.cast(in_runs(b, whole, axis, g), kind)
        wide = _together(b, b("Mul", pieces, b.array(256 ** np.arange(g, dtype=number))), g)
    divisors = b.array((4**bits) ** np.arange(n // 2, dtype=number))
    found = b("Mod", b("Div", b("Unsqueeze", wide, b.i64([-1])), divisors), b.array(number(4**bits)))
    count = b("Mul", b.size_of(wide, axis), b.i64([n // 2]))
    return b.cast(b.reshaped(found, *_before(b, wide, axis), count), ir.DataType.INT32)


def _before(b: Body, x: ir.Value, axis: int) -> list[ir.Value]:
    """The sizes before a dimension."""
    return [b("Shape", x, start=0, end=axis)] if axis else []


def _together(b: Body, parts: ir.Value, count: int) -> ir.Value:
    """The sum along the last dimension. ONNX Runtime's ReduceSum of int64 goes through float64: not for 56 bits."""
    total = b("Gather", parts, b.i64(0), axis=-1)
    for i in range(1, count):
        total = b("Add", total, b("Gather", parts, b.i64(i), axis=-1))
    return total


def stored(b: Body, codes: ir.Value, element: Format, rank: int) -> ir.Value:
    """Of int32 codes what a tensor of codes holds."""
    if not element.packed:
        return b.cast(codes, ir.DataType[element.storage_dtype.name.upper()])
    n, g = _group(element.bits)
    kind, number = _integers(element.bits)
    axis = max(rank, 1) - 1
    if rank == 0:
        codes = b("Unsqueeze", codes, b.i64([0]))
    count = b.size_of(codes, axis)
    if element.is_fixed and element.signed:
        negative = b("Less", codes, b.i32(0))
        codes = b("Add", codes, b.where(negative, b.i32(1 << element.bits), b.i32(0)))
    runs = b.cast(in_runs(b, codes, axis, n), kind)
    factors = b.array((2**element.bits) ** np.arange(n, dtype=number))
    wide = _together(b, b("Mul", runs, factors), n)
    divisors = b.array(256 ** np.arange(g, dtype=number))
    found = b("Mod", b("Div", b("Unsqueeze", wide, b.i64([-1])), divisors), b.array(number(256)))
    shape = [b("Mul", b.size_of(wide, axis), b.i64([g]))]
    if axis:
        shape.insert(0, b("Shape", wide, start=0, end=axis))
    found = b.cast(b.reshaped(found, *shape), ir.DataType.UINT8)
    used = b("Div", b("Add", b("Mul", count, b.i64([element.bits])), b.i64([7])), b.i64([8]))
    found = b("Slice", found, b.i64([0]), used, b.i64([-1]))
    return b("Squeeze", found, b.i64([0])) if rank == 0 else found
