"""What the torch kernels share: numbers bound to a shape, and checks of the tensors that are given.

Checks are cheap where all is well and let `numerics.invariants` say what is wrong where it is not.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from blockscale.errors import (
    ArgumentError,
    CodesError,
    CombinationError,
    DtypeError,
    OutError,
    ScaleError,
    UnknownNameError,
)
from blockscale.numerics import invariants, native
from blockscale.numerics.formats import FORMATS, Format
from blockscale.numerics.layout import Layout
from blockscale.numerics.scheme import Numbers, numbers_named
from blockscale.runtime.torch_arrays import DTYPES, STORAGE

FORMAT_OF = {dtype: name for name, dtype in DTYPES.items()}
TYPE_INDEX = {dtype: native.TYPE_INDEX[name] for name, dtype in DTYPES.items()}

Gradient = Literal["straight", "clipped"]
GRADIENTS: tuple[Gradient, ...] = ("straight", "clipped")

Params = tuple[Tensor | None, Tensor | None, Tensor | None]  # scale, zero point, tensor scale


class Bound:
    """A layout, and what is asked of it at every call."""

    def __init__(self, numbers: str, shape: tuple[int, ...], block: tuple[int, ...]) -> None:
        self.numbers = numbers_named(numbers)
        self.layout = Layout(self.numbers, shape, block)
        self.scale_shape = self.layout.scale_shape
        self.scale_dtype = scale_dtype(self.numbers)
        self.code_dtype = code_dtype(self.numbers)
        self.legal_scales = _legal_scales(self.numbers)

    @cached_property
    def plan(self) -> Any:
        return native.plan_of(self.layout)


@lru_cache(maxsize=8192)
def bound_to(numbers: str, shape: tuple[int, ...], block: tuple[int, ...]) -> Bound:
    return Bound(numbers, shape, block)


def scale_dtype(numbers: Numbers) -> torch.dtype:
    return torch.uint8 if numbers.scale_format.bits == 8 else DTYPES[numbers.scale]


def code_dtype(numbers: Numbers) -> torch.dtype:
    return STORAGE[str(numbers.element_format.storage_dtype)]


def _legal_scales(numbers: Numbers) -> tuple[int, int, int] | None:
    """Bytes of a stored scale, its least and its greatest bit pattern; None if all are legal."""
    scale = numbers.scale_format
    if scale.kind == "exponent":
        return None
    if scale.bits == 8:
        return 1, 0, 0x7F
    return _positive(scale)


def _positive(number: Format) -> tuple[int, int, int]:
    infinity = ((1 << number.exponent_bits) - 1) << number.mantissa_bits
    return number.bits // 8, 1, infinity - 1


_POSITIVE = _positive(FORMATS["f32"])


# ----------------------------------------------------------------------------------------- checks


def type_index(argument: str, dtype: torch.dtype) -> int:
    """Index of the tensor format for the core."""
    index = TYPE_INDEX.get(dtype)
    if index is None:
        raise DtypeError(argument, dtype, "float32, bfloat16 or float16; cast it first")
    return index


def check_strided(argument: str, x: Tensor) -> None:
    if x.layout is not torch.strided or x.is_quantized or x.is_nested:
        kind = "quantized" if x.is_quantized else "nested" if x.is_nested else str(x.layout)
        raise ArgumentError(f"{argument}.layout", kind, "a plain strided tensor; convert it first")


def check_gradient(gradient: str) -> None:
    if gradient not in GRADIENTS:
        raise UnknownNameError("gradient", gradient, GRADIENTS)


def check_codes_exist(numbers: Numbers) -> None:
    native.check_codes_exist(numbers)


def check_codes(codes: Tensor, bound: Bound) -> None:
    """Dtype and shape alone: a code out of range decodes to a number beyond the range, no worse."""
    check_codes_exist(bound.numbers)
    if codes.dtype is not bound.code_dtype:
        invariants.check_codes(bound.layout, codes)
    if codes.shape != bound.layout.codes_shape:
        wanted = f"{bound.layout.codes_shape} for shape {bound.layout.shape} in {bound.numbers.element}"
        raise CodesError("codes shape", tuple(codes.shape), wanted)


def check_out(out: Tensor, x: Tensor) -> None:
    if out.shape != x.shape or out.dtype is not x.dtype or out.device != x.device:
        given = f"{out.dtype}{list(out.shape)} on {out.device}"
        raise OutError("out", given, f"{x.dtype}{list(x.shape)} on {x.device}, like x")
    if any(step == 0 and n > 1 for step, n in zip(out.stride(), out.shape, strict=True)):
        raise OutError("out", "an expanded tensor", "one with memory for every element")
    start, other = out.data_ptr(), x.data_ptr()
    same = start == other and out.stride() == x.stride()
    if not same and start < other + reach(x) and other < start + reach(out):
        raise OutError("out", "overlaps x", "x itself, or memory of its own")


def reach(x: Tensor) -> int:
    """Bytes from the first to the last element."""
    if x.is_contiguous() or x.numel() == 0:
        return x.nbytes
    steps = sum(step * (n - 1) for step, n in zip(x.stride(), x.shape, strict=True))
    return (steps + 1) * x.element_size()


def checked_params(
    bound: Bound, device: torch.device, scale: Tensor | None, zero_point: Tensor | None,
    tensor_scale: Tensor | None,
) -> Params:  # fmt: skip
    """The given parameters, None for what is absent, all of right dtype, shape, device and values."""
    params = scale, zero_point, tensor_scale = checked_presence(
        bound.numbers, device, scale, zero_point, tensor_scale
    )
    layout = bound.layout
    if scale is not None:
        if not _fine(scale, bound.scale_shape, bound.scale_dtype, bound.legal_scales):
            invariants.check_scales(layout, scale)
        numbers = bound.numbers
        low, high = numbers.quant_min, numbers.quant_max
        legal = (4, low or 0, high or 0)
        if zero_point is None or not _fine(zero_point, bound.scale_shape, torch.int32, legal):
            invariants.check_zero_points(layout, zero_point)
    if tensor_scale is not None and not _fine(tensor_scale, (), torch.float32, _POSITIVE):
        invariants.check_tensor_scale(layout, tensor_scale)
    return params


def checked_presence(
    numbers: Numbers, device: torch.device, scale: Tensor | None, zero_point: Tensor | None,
    tensor_scale: Tensor | None,
) -> Params:  # fmt: skip
    """What can be said of parameters without their values and shapes.

    A tensor of shape (0,) is the absent zero point or tensor scale that `dynamic_quantize` returns.
    """
    if zero_point is not None and not numbers.zero_point and zero_point.shape == (0,):
        zero_point = None
    if tensor_scale is not None and not numbers.tensor_scale and tensor_scale.shape == (0,):
        tensor_scale = None
    for name, given in (("scale", scale), ("zero_point", zero_point), ("tensor_scale", tensor_scale)):
        if given is not None and given.device != device:
            raise ArgumentError(f"{name}.device", str(given.device), f"{device}, as the other tensors")
    if scale is not None:
        if numbers.why_no_codes:
            raise CombinationError(f"{numbers.why_no_codes}, so none of its scales can be given")
        if zero_point is None and numbers.zero_point:
            raise ScaleError("zero_point", None, f"given with the scale, for {numbers}")
        if tensor_scale is None and numbers.tensor_scale:
            raise ScaleError("tensor_scale", None, f"given with the scale, for {numbers}")
    elif zero_point is not None:
        raise ScaleError("zero_point", "a tensor", "None where no scale is given")
    if tensor_scale is not None and not numbers.tensor_scale:
        raise ScaleError("tensor_scale", "a tensor", f"None: {numbers} has none")
    if zero_point is not None and not numbers.zero_point:
        raise ScaleError("zero_point", "a tensor", f"None: {numbers} has none")
    return scale, zero_point, tensor_scale


def _fine(
    given: Tensor, shape: tuple[int, ...], dtype: torch.dtype, legal: tuple[int, int, int] | None
) -> bool:
    """Whether dtype, shape and (on the CPU, where looking costs little) all bit patterns are legal."""
    if given.dtype is not dtype or given.shape != shape:
        return False
    if legal is None:
        return True
    if given.device.type != "cpu" or not given.is_contiguous():
        return False
    width, low, high = legal
    return bool(native.within(given.data_ptr(), given.numel(), width, low, high))
