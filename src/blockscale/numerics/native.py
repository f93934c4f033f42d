"""The compiled core for numpy arrays: the functions of `codec.py`, bit for bit, at the speed of memory.

Arrays are checked here, in words that users understand; the core checks sizes once more.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from blockscale import _core
from blockscale.errors import (
    ArgumentError,
    CodesError,
    CombinationError,
    DtypeError,
    InstallationError,
    OutError,
    ScaleError,
    ShapeError,
    UnknownNameError,
)
from blockscale.numerics.arrays import TENSOR_DTYPES
from blockscale.numerics.arrays import Array as AnyArray
from blockscale.numerics.invariants import (
    check_scales,
    check_tensor_scale,
    check_zero_points,
    scale_dtype,
)
from blockscale.numerics.layout import Layout, check_fits
from blockscale.numerics.scheme import Numbers

Array = np.ndarray[Any, np.dtype[Any]]

POOL, OPENMP, SERIAL = 0, 1, 2
TYPE_INDEX = {name: i for i, name in enumerate(("f32", "bf16", "f16"))}
_TYPES: dict[np.dtype[Any], int] = {TENSOR_DTYPES[name]: i for name, i in TYPE_INDEX.items()}
_ALLOWED_DTYPES = "float32, bfloat16 (of ml_dtypes) or float16; cast it first"


# For the runtimes that call the core with their own memory and threads.
CoreParams = _core.Stored
CoreWeight = _core.PackedWeight
CoreInput = _core.InputForm
openmp_found = _core.openmp_found


def within(address: int, count: int, width: int, low: int, high: int) -> bool:
    """Whether `count` integers of `width` bytes, or bit patterns of positive floats, are in low..high."""
    return bool(_core.within(address, count, width, low, high))


@dataclass(frozen=True)
class Stored:
    """Codes are decoded with these: arrays (or torch tensors) of layout.scale_shape, in stored form.

    scales        uint8 (e8m0, fp8_e4m3) or the dtype of the scale format
    zero_points   int32, or None
    tensor_scale  float32 of shape (), or None
    """

    scales: AnyArray
    zero_points: AnyArray | None = None
    tensor_scale: AnyArray | None = None


@lru_cache(maxsize=512)
def core_numbers(numbers: Numbers) -> _core.Numbers:
    """The fields of `numbers` and of its dialect's row, for the core."""
    row = numbers.dialect_row
    signs = row.zero_signs(numbers.element_format.is_fixed, str(numbers.rounding))
    result = _core.Numbers()
    for name, value in {
        "element": numbers.element, "scale": numbers.scale, "family": numbers.family,
        "rule": numbers.rule, "rounding": numbers.rounding, "nonfinite": row.nonfinite,
        "zero_point": numbers.zero_point, "quant_min": numbers.quant_min or 0,
        "quant_max": numbers.quant_max or 0, "saturates": row.saturates,
        "reciprocal": row.reciprocal, "nearly_half": row.nearly_half,
        "has_codes": not numbers.why_no_codes, "clamps": row.clamps, "flushes": row.flushes,
        "least_scale": row.least_scale, "zero_scale": row.zero_scale,
        "int_low": row.least_code(numbers.element_format),
        "sub_block": numbers.sub_block, "sub_shift": numbers.sub_shift,
        "zero_of_zero": signs[0], "zero_of_underflow": signs[1], "zero_of_tiny": signs[2],
    }.items():  # fmt: skip
        setattr(result, name, value)
    return result


@lru_cache(maxsize=4096)
def plan_of(layout: Layout) -> _core.Plan:
    if not _core.isa():
        require_isa()
    check_fits(layout)
    return _core.Plan(core_numbers(layout.numbers), list(layout.shape), list(layout.block))


def require_isa() -> None:
    """An error if BLOCKSCALE_ISA asked for what this machine lacks."""
    if not _core.isa():
        import os

        raise InstallationError(
            f"BLOCKSCALE_ISA={os.environ.get('BLOCKSCALE_ISA')!r}: this machine can run "
            f"{_core.available_isas()}; unset it to take the best"
        )


def checked_seed(seed: int) -> int:
    if not hasattr(seed, "__index__") or isinstance(seed, bool):
        raise ArgumentError("seed", seed, "an integer from 0 to 2^64 - 1")
    seed = operator.index(seed)
    if not 0 <= seed < 1 << 64:
        raise ArgumentError("seed", seed, "from 0 to 2^64 - 1")
    return seed


# ------------------------------------------------------------------------------------- operations


def fake_quantize(
    x: Array, layout: Layout, params: Stored | None = None, *, tensor_scale: float | None = None,
    seed: int = 0, out: Array | None = None,
) -> Array:  # fmt: skip
    """Quantize and dequantize at once; same dtype out. `out=x` works in place."""
    x = _input(x, layout)
    if out is None:
        out = np.empty_like(x)
    else:
        _check_out(out, x, layout)
    stored = given(params, tensor_scale, layout)
    y = out if _usable(out) else np.empty_like(x, order="C")
    plan_of(layout).fake_quantize(
        _address(x), _reach(x), _TYPES[x.dtype], _strides(x), _address(y), _reach(y),
        _strides(y), stored, checked_seed(seed), POOL, 0,
    )  # fmt: skip
    if y is not out:
        out[...] = y
    return out


def quantize(
    x: Array, layout: Layout, params: Stored | None = None, *, tensor_scale: float | None = None,
    seed: int = 0,
) -> tuple[Array, Stored]:  # fmt: skip
    """Stored codes, and the parameters that decode them (the given ones, or chosen from x)."""
    check_codes_exist(layout.numbers)
    x = _input(x, layout)
    codes = np.empty(layout.codes_shape, layout.numbers.element_format.storage_dtype)
    result = params if params is not None else _empty_params(layout)
    stored = given(params, tensor_scale, layout, result)
    t = plan_of(layout).quantize(
        _address(x), _reach(x), _TYPES[x.dtype], _strides(x), codes.ctypes.data, codes.nbytes,
        stored, checked_seed(seed), POOL, 0,
    )  # fmt: skip
    return codes, _with_tensor_scale(result, t, layout)


def choose_params(x: Array, layout: Layout, *, tensor_scale: float | None = None) -> Stored:
    """Scales and zero points from the data, by the rule of the layout."""
    check_codes_exist(layout.numbers)
    x = _input(x, layout)
    result = _empty_params(layout)
    stored = given(None, tensor_scale, layout, result)
    t = plan_of(layout).choose_params(_address(x), _reach(x), _TYPES[x.dtype], _strides(x), stored, POOL, 0)
    return _with_tensor_scale(result, t, layout)


def dequantize(
    codes: Array, layout: Layout, params: Stored, dtype: str = "f32", out: Array | None = None
) -> Array:
    """Values of stored codes in the tensor format `dtype` (f32, bf16, f16)."""
    check_codes(codes, layout)
    codes = dense(codes)
    if out is None:
        out = np.empty(layout.shape, tensor_dtype(dtype))
    else:
        _check_writeable(out, layout, _TYPES, "float32, bfloat16 or float16")
        if np.may_share_memory(out, codes):
            raise OutError("out", "overlaps codes", "memory of its own")
    stored = given(params, None, layout)
    y = out if _usable(out) else np.empty(out.shape, out.dtype)
    plan_of(layout).dequantize(
        codes.ctypes.data, codes.nbytes, _address(y), _reach(y), _TYPES[y.dtype], _strides(y),
        stored, POOL, 0,
    )  # fmt: skip
    if y is not out:
        out[...] = y
    return out


# ----------------------------------------------------------------------------------------- checks


def check_codes_exist(numbers: Numbers) -> None:
    if numbers.sub_block:
        raise CombinationError(f"{numbers.why_no_codes}: use fake_quantize, or {numbers.element!r}")
    if numbers.why_no_codes:
        raise CombinationError(
            f"dialect {numbers.dialect!r} only fake-quantizes: it has no codes to store; "
            "use fake_quantize, or dialect='ocp'"
        )


def tensor_dtype(name: str) -> np.dtype[Any]:
    if name not in TENSOR_DTYPES:
        raise UnknownNameError("dtype", name, TYPE_INDEX)
    return TENSOR_DTYPES[name]


def check_codes(codes: Array, layout: Layout) -> None:
    wanted = layout.numbers.element_format.storage_dtype
    if codes.dtype != wanted or codes.shape != layout.codes_shape:
        raise CodesError(
            "codes", f"{codes.dtype}{list(codes.shape)}",
            f"{wanted}{list(layout.codes_shape)} for shape {layout.shape} in {layout.numbers.element}",
        )  # fmt: skip


def check_params(params: Stored, layout: Layout) -> None:
    """Scales, zero points and tensor scale of the right dtype, shape and values, or an error."""
    check_scales(layout, params.scales)
    check_zero_points(layout, params.zero_points)
    check_tensor_scale(layout, params.tensor_scale)


def checked_tensor_scale(value: float, layout: Layout) -> float:
    if not layout.numbers.tensor_scale:
        raise ScaleError("tensor_scale", value, "None: only NVFP4 has one")
    with np.errstate(over="ignore"):
        rounded = float(np.float32(value))
    if not (math.isfinite(rounded) and rounded > 0):
        raise ScaleError("tensor_scale", value, "positive and finite in float32")
    return rounded


def _input(x: Array, layout: Layout) -> Array:
    type_of(x)
    if x.shape != layout.shape:
        raise ShapeError("x.shape", x.shape, f"{layout.shape}, that of the layout")
    return x if _usable(x) else x.copy(order="C")


def type_of(x: Any) -> int:
    """The core's number of the dtype of values, or an error."""
    if not isinstance(x, np.ndarray) or x.dtype not in _TYPES:
        raise DtypeError("x", getattr(x, "dtype", type(x)), _ALLOWED_DTYPES)
    return _TYPES[x.dtype]


def _usable(x: Array) -> bool:
    """Whether the core can walk it: aligned, steps of whole elements."""
    return bool(x.flags.aligned) and all(s % x.itemsize == 0 for s in x.strides)


def dense(a: Array) -> Array:
    """Contiguous and aligned, a copy only if it is not. (np.ascontiguousarray knows no alignment.)"""
    return a if a.flags.c_contiguous and a.flags.aligned else a.copy(order="C")


def _check_out(out: Array, x: Array, layout: Layout) -> None:
    _check_writeable(out, layout, (x.dtype,), f"{x.dtype}, like x")
    same = out.__array_interface__["data"] == x.__array_interface__["data"]
    if not (same and out.strides == x.strides) and np.may_share_memory(out, x):
        raise OutError("out", "overlaps x", "x itself, or memory of its own")


def _check_writeable(out: Any, layout: Layout, dtypes: Collection[np.dtype[Any]], allowed: str) -> None:
    if not isinstance(out, np.ndarray) or out.shape != layout.shape or out.dtype not in dtypes:
        given = f"{getattr(out, 'dtype', type(out))}{list(getattr(out, 'shape', ()))}"
        raise OutError("out", given, f"of shape {layout.shape}, {allowed}")
    if not out.flags.writeable:
        raise OutError("out", "read-only", "writeable")
    if out.size and any(s == 0 and n > 1 for s, n in zip(out.strides, out.shape, strict=True)):
        raise OutError("out", "a broadcast array", "one with memory for every element")


def _strides(x: Array) -> list[int] | None:
    return None if x.flags.c_contiguous else [s // x.itemsize for s in x.strides]


def _address(x: Array) -> int:
    """Where its memory begins: at its last element in dimensions that are walked backward."""
    if x.size == 0 or x.flags.c_contiguous:
        return int(x.ctypes.data)
    return int(x.ctypes.data + sum(s * (n - 1) for s, n in zip(x.strides, x.shape, strict=True) if s < 0))


def _reach(x: Array) -> int:
    """Bytes of memory that its elements span."""
    if x.size == 0:
        return 0
    return int(sum(abs(s) * (n - 1) for s, n in zip(x.strides, x.shape, strict=True)) + x.itemsize)


def _empty_params(layout: Layout) -> Stored:
    scales = np.empty(layout.scale_shape, scale_dtype(layout.numbers))
    zeros = np.empty(layout.scale_shape, np.int32) if layout.numbers.zero_point else None
    return Stored(scales, zeros)


def _with_tensor_scale(params: Stored, t: float, layout: Layout) -> Stored:
    if not layout.numbers.tensor_scale:
        return params
    return Stored(params.scales, params.zero_points, np.array(t, np.float32))


def given(
    params: Stored | None, tensor_scale: float | None, layout: Layout, room: Stored | None = None
) -> _core.Stored:
    """The core's view of given parameters, or of the room for chosen ones."""
    stored = _core.Stored()
    if params is not None:
        check_params(params, layout)
        stored.given = True
        scales = dense(params.scales)
        zeros = None if params.zero_points is None else dense(params.zero_points)
        room = Stored(scales, zeros)
        if params.tensor_scale is not None:
            tensor_scale = float(params.tensor_scale)
    if tensor_scale is not None:
        stored.tensor_scale = checked_tensor_scale(tensor_scale, layout)
        stored.tensor_scale_given = True
    if room is not None:
        stored.scales, stored.scale_bytes = room.scales.ctypes.data, room.scales.nbytes
        if room.zero_points is not None:
            stored.zeros, stored.zero_bytes = room.zero_points.ctypes.data, room.zero_points.nbytes
        stored.keep = room
    return stored
