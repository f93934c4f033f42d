"""Between numpy and torch, and tensors whose memory is not in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blockscale.numerics.arrays import TENSOR_DTYPES
from conformance.core_cases import same_bits

Array = np.ndarray[Any, np.dtype[Any]]


def to_torch(a: Array) -> Tensor:
    a = np.array(a)
    if a.dtype == TENSOR_DTYPES["bf16"]:
        return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(a)


def to_numpy(a: Tensor) -> Array:
    a = a.detach().contiguous()
    if a.dtype is torch.bfloat16:
        return np.asarray(a.view(torch.int16).numpy().view(TENSOR_DTYPES["bf16"]))
    return np.asarray(a.numpy())


def equal(a: Tensor, b: Tensor) -> bool:
    """The same dtype, shape and bits; any NaN equals any other."""
    if a.dtype is not b.dtype:
        return False
    if a.dtype is torch.float64:
        return torch.equal(a.isnan(), b.isnan()) and torch.equal(
            _bytes(a.nan_to_num(0)), _bytes(b.nan_to_num(0))
        )
    if a.dtype.is_floating_point and a.element_size() > 1:
        return bool(same_bits(to_numpy(a), to_numpy(b)).all())
    return a.shape == b.shape and torch.equal(_bytes(a), _bytes(b))


def _bytes(a: Tensor) -> Tensor:
    return a.detach().reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)


def disordered(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """x again in memory of its own: every kind of strides that torch has."""
    yield "contiguous", x.clone()
    order = list(range(x.dim()))[::-1]
    yield "transposed", x.permute(order).contiguous().permute(order)
    wide = x.new_full([2 * n for n in x.shape], torch.nan)
    every_other = wide[tuple(slice(1, None, 2) for _ in x.shape)]
    yield "strided", every_other.copy_(x)
    offset = x.new_full((x.numel() + 1,), torch.nan)
    yield "offset", offset[1:].copy_(x.reshape(-1)).reshape(x.shape)
    yield "misaligned", _misaligned(x)
    yield "of a parameter", torch.nn.Parameter(x.clone())
    if x.dtype is torch.float32:
        yield "negated", torch.complex(torch.zeros_like(x), -x).conj().imag


def _misaligned(x: Tensor) -> Tensor:
    data = bytearray(b"\0" + x.contiguous().view(torch.uint8).numpy().tobytes())
    return torch.frombuffer(data, dtype=x.dtype, offset=1).reshape(x.shape)
