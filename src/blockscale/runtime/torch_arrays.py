"""The reference codec's array functions over torch, and packed codes: the definition, on any device.

Device arithmetic must be IEEE with subnormals and have float64: CPU (without set_flush_denormal) and CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blockscale.numerics.formats import Format

# Tensor formats and the storage of codes and scales, by the names of FORMATS and numpy.
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
STORAGE = {"uint8": torch.uint8, "int8": torch.int8, "int16": torch.int16, "uint16": torch.uint16}


class TorchArrays:
    """`numerics.arrays.Arrays` over torch."""

    floor = staticmethod(torch.floor)
    rint = staticmethod(torch.round)  # half to even
    abs = staticmethod(torch.abs)
    copysign = staticmethod(torch.copysign)
    isfinite = staticmethod(torch.isfinite)
    isnan = staticmethod(torch.isnan)
    minimum = staticmethod(torch.minimum)
    maximum = staticmethod(torch.maximum)
    zeros_like = staticmethod(torch.zeros_like)
    divide = staticmethod(torch.div)
    multiply = staticmethod(torch.mul)

    def where(self, condition: Tensor, a: Any, b: Any) -> Tensor:
        return torch.where(condition, a, b)

    def f64(self, x: Tensor) -> Tensor:
        return x.to(torch.float64)

    def f32(self, x: Tensor) -> Tensor:
        return x.to(torch.float32)

    def i64(self, x: Tensor) -> Tensor:
        return x.to(torch.int64)

    def cast(self, x: Tensor, name: str) -> Tensor:
        """By way of float32, which torch takes from float64 anyhow; what comes here is exact in it."""
        return x.to(torch.float32).to(DTYPES[name])

    def frexp(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mantissa, exponent = torch.frexp(x)
        return mantissa, exponent.to(torch.int64)

    def ldexp(self, x: Tensor, exponent: Tensor) -> Tensor:
        """x · 2^exponent for float64; in two steps, as the power alone may not be a normal number.

        (torch.ldexp takes the power in float32.)
        """
        half = exponent >> 1
        return x * _power_of_two(half) * _power_of_two(exponent - half)

    def amax(self, x: Tensor, axis: int) -> Tensor:
        if x.shape[axis] == 0:
            return x.new_zeros([n for i, n in enumerate(x.shape) if i != axis % x.ndim])
        return x.amax(axis).clamp(min=0)

    def pad(self, x: Tensor, after: Sequence[int]) -> Tensor:
        return torch.nn.functional.pad(x, [side for n in reversed(after) for side in (0, n)])

    def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        return x.permute(tuple(axes))

    def repeat(self, x: Tensor, times: int, axis: int) -> Tensor:
        return x.repeat_interleave(times, dim=axis)

    def arange(self, n: int, like: Tensor) -> Tensor:
        return torch.arange(n, dtype=torch.int64, device=like.device)

    def full(self, shape: Sequence[int], value: float, like: Tensor) -> Tensor:
        return torch.full(tuple(shape), value, dtype=torch.float64, device=like.device)

    def table(self, values: Any, like: Tensor) -> Tensor:
        return torch.from_numpy(np.array(values, np.float64)).to(like.device)

    def take(self, table: Tensor, index: Tensor) -> Tensor:
        return table[index]


def _power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent, exponent from -1022 to 1023, by its bits."""
    return ((exponent + 1023) << 52).view(torch.float64)


TORCH = TorchArrays()


def pack(codes: Tensor, element: Format) -> Tensor:
    """int64 codes [..., K] → storage, as `numerics.packing.pack`."""
    storage = STORAGE[str(element.storage_dtype)]
    if element.is_fixed and element.bits >= 8:
        return codes.to(storage)
    if not element.packed or codes.ndim == 0:
        return (codes & ((1 << element.bits) - 1)).to(storage)
    shifts = torch.arange(element.bits, device=codes.device)
    stream = ((codes[..., None] >> shifts) & 1).flatten(-2)
    stream = torch.nn.functional.pad(stream, [0, -stream.shape[-1] % 8])
    return _weighed(stream.reshape(*stream.shape[:-1], stream.shape[-1] // 8, 8)).to(storage)


def unpack(stored: Tensor, element: Format, length: int) -> Tensor:
    """The inverse of `pack`: int64 bit patterns, or signed values of fixed formats."""
    patterns = stored.to(torch.int64) & ((1 << element.bits) - 1)
    if element.packed and stored.ndim:
        shifts = torch.arange(8, device=stored.device)
        stream = ((stored.to(torch.int64)[..., None] >> shifts) & 1).flatten(-2)
        stream = stream[..., : length * element.bits]
        patterns = _weighed(stream.reshape(*stored.shape[:-1], length, element.bits))
    if element.is_fixed and element.signed:
        sign = 1 << (element.bits - 1)
        return (patterns ^ sign) - sign
    return patterns


def _weighed(bits: Tensor) -> Tensor:
    """[..., n] bits, the lowest first → the numbers they make."""
    return (bits << torch.arange(bits.shape[-1], device=bits.device)).sum(-1)
