"""Kernels of the operators for any other device: the reference codec over torch, with the same bits.

Slow, and every operation a call of the device's own; the CPU has the compiled core (torch_cpu.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from blockscale.numerics import codec
from blockscale.numerics.blocking import per_element
from blockscale.runtime import torch_cpu
from blockscale.runtime.torch_arrays import TORCH, pack, unpack
from blockscale.runtime.torch_bound import (
    FORMAT_OF,
    Bound,
    Params,
    bound_to,
    check_codes,
    check_codes_exist,
    check_gradient,
    check_out,
    check_strided,
    checked_params,
    type_index,
)

WITHOUT_FLOAT64 = ("mps",)

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def _needs_float64(kernel: Kernel) -> Kernel:
    """Where a device has no float64, its tensors go through the CPU's kernel: the bits matter more."""

    @wraps(kernel)
    def run(*args: Any, **kwargs: Any) -> Any:
        if args[0].device.type in WITHOUT_FLOAT64:
            return by_way_of_cpu(getattr(torch_cpu, kernel.__name__, run), args, kwargs)
        return kernel(*args, **kwargs)

    return run  # type: ignore[return-value]  # the same signature


def by_way_of_cpu(kernel: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What the kernel gives for these arguments moved to the CPU, moved back."""
    device = args[0].device
    result = kernel(*map(_on_cpu, args), **{name: _on_cpu(value) for name, value in kwargs.items()})
    if "out" in kwargs:
        return kwargs["out"].copy_(result)
    return result.to(device) if isinstance(result, Tensor) else tuple(one.to(device) for one in result)


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


@_needs_float64
def fake_quantize(
    x: Tensor, numbers: str, block: Sequence[int], scale: Tensor | None = None,
    zero_point: Tensor | None = None, tensor_scale: Tensor | None = None, *,
    gradient: str = "straight", seed: int = 0,
) -> Tensor:  # fmt: skip
    bound = _checked(x, numbers, block)
    check_gradient(gradient)
    scale, _, t = given = checked_params(bound, x.device, scale, zero_point, tensor_scale)
    y = codec.fake_quantize(
        x, bound.layout, None if scale is None else _params(given), tensor_format=FORMAT_OF[x.dtype],
        tensor_scale=t, seed=seed, xp=TORCH,
    )  # fmt: skip
    return torch.empty_like(x).copy_(y)


@_needs_float64
def fake_quantize_out(
    x: Tensor, numbers: str, block: Sequence[int], scale: Tensor | None = None,
    zero_point: Tensor | None = None, tensor_scale: Tensor | None = None, *,
    gradient: str = "straight", seed: int = 0, out: Tensor,
) -> Tensor:  # fmt: skip
    _checked(x, numbers, block)
    check_out(out, x)
    return out.copy_(fake_quantize(x, numbers, block, scale, zero_point, tensor_scale, gradient=gradient,
                                   seed=seed))  # fmt: skip


@_needs_float64
def quantize(
    x: Tensor, numbers: str, block: Sequence[int], scale: Tensor, zero_point: Tensor | None = None,
    tensor_scale: Tensor | None = None, *, seed: int = 0,
) -> Tensor:  # fmt: skip
    bound = _checked(x, numbers, block)
    check_codes_exist(bound.numbers)
    params = _params(checked_params(bound, x.device, scale, zero_point, tensor_scale))
    codes, _ = codec.quantize(x, bound.layout, params, seed=seed, xp=TORCH)
    return pack(codes, bound.numbers.element_format)


@_needs_float64
def dynamic_quantize(
    x: Tensor, numbers: str, block: Sequence[int], tensor_scale: Tensor | None = None, *, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    bound = _checked(x, numbers, block)
    params = _chosen(x, bound, tensor_scale)
    codes, _ = codec.quantize(x, bound.layout, params, seed=seed, xp=TORCH)
    return pack(codes, bound.numbers.element_format), *_stored(params, bound)


@_needs_float64
def choose_params(
    x: Tensor, numbers: str, block: Sequence[int], tensor_scale: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    bound = _checked(x, numbers, block)
    return _stored(_chosen(x, bound, tensor_scale), bound)


@_needs_float64
def dequantize(
    codes: Tensor, scale: Tensor, zero_point: Tensor | None, tensor_scale: Tensor | None, numbers: str,
    shape: Sequence[int], block: Sequence[int], *, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    bound = bound_to(numbers, tuple(shape), tuple(block))
    check_strided("codes", codes)
    check_codes(codes, bound)
    type_index("dtype", dtype)
    params = _params(checked_params(bound, codes.device, scale, zero_point, tensor_scale))
    wide = unpack(codes, bound.numbers.element_format, shape[-1] if shape else 1)
    y: Tensor = codec.dequantize(wide, bound.layout, params, FORMAT_OF[dtype], TORCH)
    return y.contiguous()


@_needs_float64
def unsaturated(
    x: Tensor, numbers: str, block: Sequence[int], scale: Tensor | None = None,
    zero_point: Tensor | None = None, tensor_scale: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Where x lies within the range of its block: low · scale ≤ x ≤ high · scale, never for NaN."""
    bound = _checked(x, numbers, block)
    scale, _, t = given = checked_params(bound, x.device, scale, zero_point, tensor_scale)
    layout = bound.layout
    params = _params(given) if scale is not None else codec.choose_params(
        x, layout, FORMAT_OF[x.dtype], t, TORCH
    )  # fmt: skip
    low, high = codec.limits(layout, params, TORCH)
    unit = per_element(TORCH, codec.effective_scale(layout, params, TORCH), layout)
    wide = TORCH.f64(x)
    inside = (wide >= low * unit) & (wide <= high * unit)
    return torch.empty_like(x, dtype=torch.bool).copy_(inside)


# ---------------------------------------------------------------------------- stored and reference


def _checked(x: Tensor, numbers: str, block: Sequence[int]) -> Bound:
    check_strided("x", x)
    type_index("x", x.dtype)
    return bound_to(numbers, tuple(x.shape), tuple(block))


def _chosen(x: Tensor, bound: Bound, tensor_scale: Tensor | None) -> codec.Params:
    check_codes_exist(bound.numbers)
    _, _, t = checked_params(bound, x.device, None, None, tensor_scale)
    return codec.choose_params(x, bound.layout, FORMAT_OF[x.dtype], t, TORCH)


def _params(given: Params) -> codec.Params:
    """As the reference takes them: bytes as int64, scales as float32."""
    scale, zero_point, tensor_scale = given
    assert scale is not None
    wide = torch.int64 if scale.dtype is torch.uint8 else torch.float32
    zeros = None if zero_point is None else zero_point.to(torch.int64)
    return codec.Params(scale.to(wide), zeros, tensor_scale)


def _stored(params: codec.Params, bound: Bound) -> tuple[Tensor, Tensor, Tensor]:
    scales: Tensor = params.scales.to(bound.scale_dtype).contiguous()
    zeros, t = params.zero_points, params.tensor_scale
    if zeros is None:
        zeros = torch.empty(0, device=scales.device)
    if t is None:
        t = torch.empty(0, device=scales.device)
    return scales, zeros.to(torch.int32).contiguous(), t.to(torch.float32, copy=True)
