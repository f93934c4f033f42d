"""Kernels of the operators for CPU tensors: the compiled core on torch's memory and torch's threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from blockscale.numerics import native
from blockscale.runtime.torch_bound import (
    TYPE_INDEX,
    Bound,
    Params,
    bound_to,
    check_codes,
    check_codes_exist,
    check_gradient,
    check_out,
    checked_params,
    reach,
    type_index,
)

# torch's own OpenMP runtime; a build of torch without one leaves the core's pool.
HOST = native.OPENMP if native.openmp_found() else native.POOL
SEEDS = (1 << 64) - 1
CPU = torch.device("cpu")  # said outright: a default device is for what users make

_threads = torch.get_num_threads
_CHOOSE = native.CoreParams()  # nothing given, and no room for what is chosen


def fake_quantize(
    x: Tensor, numbers: str, block: Sequence[int], scale: Tensor | None = None,
    zero_point: Tensor | None = None, tensor_scale: Tensor | None = None, *,
    gradient: str = "straight", seed: int = 0,
) -> Tensor:  # fmt: skip
    bound = bound_to(numbers, x.shape, tuple(block))
    if gradient != "straight":
        check_gradient(gradient)
    params = _CHOOSE
    if scale is not None or tensor_scale is not None or zero_point is not None:
        params = given_params(bound, checked_params(bound, x.device, scale, zero_point, tensor_scale))
    index = type_index("x", x.dtype)
    y = torch.empty_like(x)
    address, n = x.data_ptr(), x.nbytes
    if x.is_contiguous() and address % 4 == 0:
        bound.plan.fake_quantize(
            address, n, index, None, y.data_ptr(), n, None, params, seed & SEEDS, HOST, _threads()
        )
    else:
        _fake_quantize_into(y, bound, aligned(x), params, seed)
    return y


def fake_quantize_out(
    x: Tensor, numbers: str, block: Sequence[int], scale: Tensor | None = None,
    zero_point: Tensor | None = None, tensor_scale: Tensor | None = None, *,
    gradient: str = "straight", seed: int = 0, out: Tensor,
) -> Tensor:  # fmt: skip
    bound = bound_to(numbers, x.shape, tuple(block))
    check_gradient(gradient)
    given = given_params(bound, checked_params(bound, x.device, scale, zero_point, tensor_scale))
    type_index("x", x.dtype)
    check_out(out, x)
    x = aligned(x)
    y = aligned(out)
    _fake_quantize_into(y, bound, x, given, seed)
    if y is not out:
        out.copy_(y)
    elif not out.is_inference():
        torch.autograd.graph.increment_version(out)
    return out


def quantize(
    x: Tensor, numbers: str, block: Sequence[int], scale: Tensor, zero_point: Tensor | None = None,
    tensor_scale: Tensor | None = None, *, seed: int = 0,
) -> Tensor:  # fmt: skip
    bound = bound_to(numbers, x.shape, tuple(block))
    given = given_params(bound, checked_params(bound, x.device, scale, zero_point, tensor_scale))
    return _quantize(bound, x, given, seed)


def dynamic_quantize(
    x: Tensor, numbers: str, block: Sequence[int], tensor_scale: Tensor | None = None, *, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    bound = bound_to(numbers, x.shape, tuple(block))
    params, scales, zeros = _room(bound, x, tensor_scale)
    codes = _quantize(bound, x, params, seed)
    return codes, scales, zeros, _tensor_scale(bound, params)


def choose_params(
    x: Tensor, numbers: str, block: Sequence[int], tensor_scale: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    bound = bound_to(numbers, x.shape, tuple(block))
    index = type_index("x", x.dtype)
    params, scales, zeros = _room(bound, x, tensor_scale)
    x = aligned(x)
    bound.plan.choose_params(x.data_ptr(), reach(x), index, _strides(x), params, HOST, _threads())
    return scales, zeros, _tensor_scale(bound, params)


def dequantize(
    codes: Tensor, scale: Tensor, zero_point: Tensor | None, tensor_scale: Tensor | None, numbers: str,
    shape: Sequence[int], block: Sequence[int], *, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    type_index("dtype", dtype)
    y = torch.empty(tuple(shape), dtype=dtype, device=CPU)
    return dequantize_into(y, codes, scale, zero_point, tensor_scale, numbers, block)


def dequantize_into(
    y: Tensor, codes: Tensor, scale: Tensor, zero_point: Tensor | None, tensor_scale: Tensor | None,
    numbers: str, block: Sequence[int],
) -> Tensor:  # fmt: skip
    """y is contiguous memory of its own."""
    bound = bound_to(numbers, tuple(y.shape), tuple(block))
    check_codes(codes, bound)
    given = given_params(bound, checked_params(bound, codes.device, scale, zero_point, tensor_scale))
    index = type_index("dtype", y.dtype)
    codes = aligned(codes.contiguous())
    bound.plan.dequantize(
        codes.data_ptr(), codes.nbytes, y.data_ptr(), y.nbytes, index, None, given, HOST, _threads()
    )
    return y


# ---------------------------------------------------------------------------- memory for the core


def _fake_quantize_into(y: Tensor, bound: Bound, x: Tensor, params: Any, seed: int) -> None:
    bound.plan.fake_quantize(
        x.data_ptr(), reach(x), TYPE_INDEX[x.dtype], _strides(x), y.data_ptr(), reach(y), _strides(y),
        params, seed & SEEDS, HOST, _threads(),
    )  # fmt: skip


def _quantize(bound: Bound, x: Tensor, params: Any, seed: int) -> Tensor:
    check_codes_exist(bound.numbers)
    index = type_index("x", x.dtype)
    x = aligned(x)
    codes = torch.empty(bound.layout.codes_shape, dtype=bound.code_dtype, device=CPU)
    bound.plan.quantize(
        x.data_ptr(), reach(x), index, _strides(x), codes.data_ptr(), codes.nbytes, params,
        seed & SEEDS, HOST, _threads(),
    )  # fmt: skip
    return codes


def given_params(bound: Bound, given: Params) -> Any:
    """The core's view of checked parameters, which it keeps alive."""
    scale, zero_point, tensor_scale = given
    params = native.CoreParams()
    if tensor_scale is not None:
        params.tensor_scale_bits = int(tensor_scale.view(torch.int32)) & 0xFFFFFFFF
        params.tensor_scale_given = True
    if scale is not None:
        params.given = True
        scale = aligned(scale.contiguous())
        params.scales, params.scale_bytes = scale.data_ptr(), scale.nbytes
        if zero_point is not None:
            zero_point = aligned(zero_point.contiguous())
            params.zeros, params.zero_bytes = zero_point.data_ptr(), zero_point.nbytes
        params.keep = scale, zero_point
    return params


def _room(bound: Bound, x: Tensor, tensor_scale: Tensor | None) -> tuple[Any, Tensor, Tensor]:
    """Where the core writes the scales and zero points that it chooses."""
    check_codes_exist(bound.numbers)
    params = given_params(bound, checked_params(bound, x.device, None, None, tensor_scale))
    scales = torch.empty(bound.scale_shape, dtype=bound.scale_dtype, device=CPU)
    params.scales, params.scale_bytes = scales.data_ptr(), scales.nbytes
    if not bound.numbers.zero_point:
        return params, scales, torch.empty(0, dtype=torch.int32, device=CPU)
    zeros = torch.empty(bound.scale_shape, dtype=torch.int32, device=CPU)
    params.zeros, params.zero_bytes = zeros.data_ptr(), zeros.nbytes
    return params, scales, zeros


def _tensor_scale(bound: Bound, params: Any) -> Tensor:
    """By its bits: under set_flush_denormal a subnormal number does not survive being a Python float."""
    if not bound.numbers.tensor_scale:
        return torch.empty(0, dtype=torch.float32, device=CPU)
    return torch.full((), params.tensor_scale_bits, dtype=torch.int32, device=CPU).view(torch.float32)


def _strides(x: Tensor) -> Sequence[int] | None:
    return None if x.is_contiguous() else list(x.stride())


def aligned(x: Tensor) -> Tensor:
    """x, or a copy: torch.frombuffer makes tensors that start between two elements."""
    return x.clone() if x.data_ptr() % x.element_size() else x
