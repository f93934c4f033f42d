"""Types of ONNX tensors that hold codes, and how DequantizeLinear says a layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from blockscale.numerics.scheme import Numbers

_FLOATS = {
    "fp8_e4m3": ir.DataType.FLOAT8E4M3FN, "fp8_e5m2": ir.DataType.FLOAT8E5M2, "fp6_e2m3": ir.DataType.FLOAT6E2M3,
    "fp6_e3m2": ir.DataType.FLOAT6E3M2, "fp4_e2m1": ir.DataType.FLOAT4E2M1,
}  # fmt: skip
_WIDTHS = (2, 4, 8, 16)
# The first opset whose QuantizeLinear and DequantizeLinear take a type (blocks came with 21).
_SINCE = {
    ir.DataType.FLOAT4E2M1: 23, ir.DataType.FLOAT8E8M0: 24, ir.DataType.INT2: 25, ir.DataType.UINT2: 25,
    ir.DataType.FLOAT6E2M3: 28, ir.DataType.FLOAT6E3M2: 28,
}  # fmt: skip
BLOCKED = 21
# The first version of the file format that has them.
_IR_SINCE = {
    ir.DataType.FLOAT8E4M3FN: 9, ir.DataType.FLOAT8E5M2: 9, ir.DataType.INT4: 10, ir.DataType.UINT4: 10,
    ir.DataType.FLOAT4E2M1: 11, ir.DataType.FLOAT8E8M0: 12, ir.DataType.INT2: 13, ir.DataType.UINT2: 13,
    ir.DataType.FLOAT6E2M3: 14, ir.DataType.FLOAT6E3M2: 14,
}  # fmt: skip
FUNCTIONS_SINCE = 8


@dataclass(frozen=True)
class Runtime:
    """What a runtime has kernels for.

    floats    element → type of its codes; one that holds every value of the element will do
    widths    of integers
    bytes_as_scales   whether DequantizeLinear takes scales of FLOAT8E8M0
    """

    name: str
    floats: dict[str, ir.DataType]
    widths: tuple[int, ...]
    bytes_as_scales: bool


# ONNX itself, with the types of its newest opset; and the CPU kernels of ONNX Runtime 1.20 and later.
RUNTIMES = {
    "onnx": Runtime("onnx", _FLOATS, _WIDTHS, True),
    "onnxruntime": Runtime(
        "onnxruntime",
        {
            **dict.fromkeys(("fp4_e2m1", "fp6_e2m3", "fp6_e3m2", "fp8_e4m3"), ir.DataType.FLOAT8E4M3FN),
            "fp8_e5m2": ir.DataType.FLOAT8E5M2,
        },
        (4, 8, 16),
        False,
    ),
}


def least_ir_version(model: ir.Model) -> int:
    """Of the file format, for the types of its constants and the functions that it has."""
    values = (
        value for graph in (model.graph, *model.graph.subgraphs()) for value in graph.initializers.values()
    )
    types = {value.dtype for value in values if value.dtype is not None}
    least = FUNCTIONS_SINCE if model.functions else 3
    return max([least, *(_IR_SINCE.get(one, 3) for one in types)])


def code_type(numbers: Numbers, runtime: Runtime) -> ir.DataType:
    """Of codes: the element's own type, or the nearest that holds all its values."""
    element = numbers.element_format
    if element.is_float:
        return runtime.floats[element.name]
    if element.name == "mxint8":
        return ir.DataType.INT8
    width = next(one for one in runtime.widths if one >= element.bits)
    return ir.DataType[f"{'' if element.signed else 'U'}INT{width}"]


def has_its_grid(numbers: Numbers, runtime: Runtime) -> bool:
    """Whether the type rounds as the element does; of integers all do."""
    element = numbers.element_format
    return element.is_fixed or _FLOATS[element.name] == code_type(numbers, runtime)


def has_its_range(numbers: Numbers, runtime: Runtime) -> bool:
    """Whether the type saturates where the element does. (-128 is no MXINT8 that is produced.)"""
    element = numbers.element_format
    if element.is_float:
        return True
    same = code_type(numbers, runtime).name.lower() == element.name
    return same and (numbers.quant_min, numbers.quant_max) == (element.min_code, element.max_code)


def scale_type(numbers: Numbers, runtime: Runtime) -> ir.DataType:
    """Of scales: bytes for MX; the step of MXINT8, 2^(s - 6), may lie below the least byte."""
    if numbers.family == "mx" and runtime.bytes_as_scales and not numbers.element_format.is_fixed:
        return ir.DataType.FLOAT8E8M0
    return ir.DataType.FLOAT


def opset_for(place: Place, *types: ir.DataType) -> int:
    least = BLOCKED if place.block_size or types[0] not in _PLAIN else 19
    return max([least, *(_SINCE.get(one, 1) for one in types)])


_PLAIN = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2)


@dataclass(frozen=True)
class Place:
    """Arguments of DequantizeLinear, and the shape in which it takes scales of full rank."""

    axis: int
    block_size: int
    scale_shape: tuple[int, ...] | None  # None: as it is

    @property
    def attributes(self) -> dict[str, Any]:
        if self.block_size:
            return {"axis": self.axis, "block_size": self.block_size}
        return {"axis": self.axis} if self.scale_shape else {}


def place_of(block: Sequence[int], sizes: Sequence[int | None]) -> Place | str:
    """Or why it has no words for these blocks: it has one scale, one an index, or blocks along one axis."""
    scales = [1 if b == 0 else None if n is None else -(-n // b) for b, n in zip(block, sizes, strict=True)]
    if all(n == 1 for n in scales):
        return Place(0, 0, ())
    if sum(n != 1 for n in scales) == 1:
        axis = next(i for i, n in enumerate(scales) if n != 1)
        if block[axis] == 1:
            return Place(axis, 0, (scales[axis] or -1,))
    wide = [i for i, (b, n) in enumerate(zip(block, sizes, strict=True)) if b != 1 and n != 1]
    if len(wide) > 1:
        return "it has blocks along one axis only"
    axis = wide[0] if wide else len(block) - 1
    size = block[axis] or sizes[axis]
    if size is None:
        return "its block would be a whole dimension whose size is known only at run time"
    return Place(axis, max(size, 1), None)
