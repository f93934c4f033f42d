"""What must hold of stored codes and their parameters; numpy arrays or torch tensors.

codes         dtype element.storage_dtype, shape layout.codes_shape, every code in range, padding bits 0
scales        shape layout.scale_shape: uint8 for 8-bit scale formats, else the scale's own dtype;
              affine scales are positive and finite, the scales of NVFP4 have no sign
zero_points   int32, shape layout.scale_shape, quant_min ≤ z ≤ quant_max; None without zero points
tensor_scale  float32, shape (), positive and finite; None without tensor scale
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from blockscale.errors import CodesError, DtypeError, ScaleError
from blockscale.numerics.arrays import TENSOR_DTYPES, Array
from blockscale.numerics.layout import Layout
from blockscale.numerics.packing import unpack
from blockscale.numerics.scheme import Numbers


def check_stored(
    layout: Layout, codes: Array, scales: Array, zero_points: Array | None, tensor_scale: Array | None
) -> None:
    check_codes(layout, codes)
    check_scales(layout, scales)
    check_zero_points(layout, zero_points)
    check_tensor_scale(layout, tensor_scale)


def scale_dtype(numbers: Numbers) -> np.dtype[Any]:
    return np.dtype(np.uint8) if numbers.scale_format.bits == 8 else TENSOR_DTYPES[numbers.scale]


def check_codes(layout: Layout, codes: Array) -> None:
    element = layout.numbers.element_format
    _check_dtype("codes", codes, str(element.storage_dtype), f"codes of {element.name}")
    if tuple(codes.shape) != layout.codes_shape:
        raise CodesError(
            "codes shape", tuple(codes.shape),
            f"{layout.codes_shape} for shape {layout.shape} in {element.name}",
        )  # fmt: skip
    if layout.size == 0:
        return
    if element.packed:
        used = (layout.shape[-1] if layout.shape else 1) * element.bits % 8
        if used and bool(((codes[..., -1] if layout.shape else codes) >> used).any()):
            raise CodesError("codes", "bits set after the last code of a row", "padding bits of 0")
    low, high = layout.numbers.quant_min, layout.numbers.quant_max
    if element.is_float:
        return
    if low is None or high is None:
        low, high = -(1 << element.bits - 1), element.max_code
    stored_range = (low, high) if layout.numbers.quant_min is None else (element.min_code, element.max_code)
    if (low, high) == stored_range and (element.bits <= 8 or element.bits == 16):
        return  # every stored pattern is a code in range
    if element.packed:
        codes = unpack(np.asarray(codes), element, layout.shape[-1] if layout.shape else 1)
    least, greatest = int(codes.min()), int(codes.max())
    if not low <= least <= greatest <= high:
        raise CodesError("codes", f"{least}..{greatest}", f"quant_min = {low} to quant_max = {high}")


def check_scales(layout: Layout, scales: Array) -> None:
    numbers = layout.numbers
    _check_dtype("scales", scales, str(scale_dtype(numbers)), f"{numbers.scale} scales")
    _check_scale_shape(layout, "scale shape", scales)
    if numbers.tensor_scale and bool((scales > 127).any()):
        raise ScaleError("scale", "a negative fp8_e4m3 code", "from 0x00 to 0x7F, where 0x7F is NaN")
    if numbers.family == "affine":
        with np.errstate(invalid="ignore"):  # ml_dtypes warns where it compares NaN
            bad = ~((scales > 0) & (scales < math.inf))
        if bool(bad.any()):
            value = float(scales[bad].reshape(-1)[0])
            raise ScaleError("scale", value, f"positive and finite in {numbers.scale}, every one")


def check_zero_points(layout: Layout, zero_points: Array | None) -> None:
    numbers = layout.numbers
    if zero_points is None:
        if numbers.zero_point:
            raise ScaleError("zero_points", None, f"given for {numbers}")
        return
    if not numbers.zero_point:
        raise ScaleError("zero_points", f"of shape {tuple(zero_points.shape)}", f"None: {numbers} has none")
    _check_dtype("zero_points", zero_points, "int32", "zero points")
    _check_scale_shape(layout, "zero point shape", zero_points)
    low, high = numbers.quant_min, numbers.quant_max
    bad = (zero_points < low) | (zero_points > high)
    if bool(bad.any()):
        raise ScaleError("zero_point", int(zero_points[bad].reshape(-1)[0]), f"from {low} to {high}")


def check_tensor_scale(layout: Layout, tensor_scale: Array | None) -> None:
    if tensor_scale is None:
        if layout.numbers.tensor_scale:
            raise ScaleError("tensor_scale", None, f"given for {layout.numbers}")
        return
    if not layout.numbers.tensor_scale:
        raise ScaleError("tensor_scale", tensor_scale, f"None: {layout.numbers} has none")
    _check_dtype("tensor_scale", tensor_scale, "float32", "a tensor scale")
    if tuple(tensor_scale.shape) != ():
        raise ScaleError("tensor_scale shape", tuple(tensor_scale.shape), "()")
    if not 0 < float(tensor_scale) < math.inf:
        raise ScaleError("tensor_scale", float(tensor_scale), "positive and finite")


def _check_scale_shape(layout: Layout, what: str, given: Array) -> None:
    if tuple(given.shape) != layout.scale_shape:
        raise ScaleError(
            what, tuple(given.shape),
            f"{layout.scale_shape} for shape {layout.shape} in blocks of {layout.block}",
        )  # fmt: skip


def _check_dtype(argument: str, given: Array, wanted: str, of: str) -> None:
    """torch calls its dtypes as numpy does, behind its own name."""
    if str(given.dtype).removeprefix("torch.") != wanted:
        raise DtypeError(argument, given.dtype, f"{wanted} for {of}")
