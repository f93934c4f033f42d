"""Operators of packages that need not be installed, under their names, with the semantics they document.

circle_custom (TICO) and tensor_cast (msmodeling) are registered here; torch has quantized_decomposed, and
torchao its own.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.ao.quantization.fx._decomposed
import torchao.quantization.quant_primitives  # noqa: F401  torchao.*_affine
from torch import Tensor

from models import dialects

ELEMENTS = {
    "int8": "mxint8",
    "fp4": "fp4_e2m1",
    "fp4_e2m1": "fp4_e2m1",
    "fp6_e3m2": "fp6_e3m2",
    "fp6_e2m3": "fp6_e2m3",
    "fp8_e4m3": "fp8_e4m3",
    "fp8_e5m2": "fp8_e5m2",
}


def _mx_fake_quantize(
    input_: Tensor, elem_format: str, axis: int, shared_exp_method: str = "max", round: str = "nearest"
) -> Tensor:
    moved = input_.movedim(axis, -1)
    n = moved.shape[-1]
    padded = torch.nn.functional.pad(moved, (0, -n % 32))
    x = np.ascontiguousarray(padded.numpy()).reshape(-1, 32)
    y = torch.from_numpy(dialects.microxcaling(x, ELEMENTS[elem_format], round))
    return y.reshape(padded.shape)[..., :n].movedim(-1, axis).contiguous()


def _itself(
    input_: Tensor, elem_format: str, axis: int, shared_exp_method: str = "max", round: str = "nearest"
) -> Tensor:
    """As a pair these are mx_fake_quantize; alone they only mark a place."""
    raise RuntimeError("a logical operator, which is not run")


def _quantize(x: Tensor, scale: Tensor, offset: Tensor | None, out_dtype: torch.dtype = torch.int8) -> Tensor:
    info = torch.iinfo(out_dtype)
    q = torch.round(x / scale) + (0 if offset is None else offset)
    return torch.clamp(q, info.min, info.max).to(out_dtype)


def _extremes(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor]:
    if not dims:
        return x.min(), x.max()
    return x.amin(dims, keepdim=True), x.amax(dims, keepdim=True)


def _dynamic_symmetric(
    x: Tensor, dims: list[int], scale_dtype: torch.dtype = torch.float32, out_dtype: torch.dtype = torch.int8
) -> tuple[Tensor, Tensor]:
    low, high = _extremes(x.float(), dims)
    scale = torch.maximum(-low, high).clamp(min=1e-6) / torch.iinfo(out_dtype).max
    return _quantize(x, scale, None, out_dtype), scale.to(scale_dtype)


def _dynamic_asymmetric(
    x: Tensor, dims: list[int], scale_dtype: torch.dtype = torch.float32, out_dtype: torch.dtype = torch.int8
) -> tuple[Tensor, Tensor, Tensor]:
    info = torch.iinfo(out_dtype)
    low, high = _extremes(x.float(), dims)
    low, high = low.clamp(max=0), high.clamp(min=0)
    scale = (high - low).clamp(min=1e-6) / (info.max - info.min)
    offset = (info.min - torch.round(low / scale)).to(torch.int32)
    return _quantize(x, scale, offset, out_dtype), scale.to(scale_dtype), offset


def _dynamic_mxfp4(x: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """Codes one a byte; int4 has no kernels."""
    n = x.shape[-1]
    groups = torch.nn.functional.pad(x.float(), (0, -n % group_size)).unflatten(-1, (-1, group_size))
    exponent = torch.frexp(groups.abs().amax(-1, keepdim=True))[1] - 3
    steps = torch.clamp(torch.round(torch.ldexp(groups, 1 - exponent)), -12, 12).to(torch.int8)
    scale = (exponent.squeeze(-1) + 127).clamp(0, 254).to(torch.uint8)
    return steps.flatten(-2)[..., :n].contiguous(), scale.view(torch.float8_e8m0fnu)


def _fake_mxfp4(x: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    groups = (x.shape[-1] + group_size - 1) // group_size
    scale = x.new_empty((*x.shape[:-1], groups), dtype=torch.float8_e8m0fnu)
    return torch.empty_like(x, dtype=torch.int8), scale


def _shape(x: Tensor, dims: list[int]) -> list[int]:
    shape = list(x.shape) if dims else []
    for dim in dims:
        shape[dim] = 1
    return shape


_DYNAMIC = "Tensor x, int[] dims, ScalarType scale_dtype=float, ScalarType out_dtype=int8"
_MX = 'Tensor input_, str elem_format, SymInt axis, str shared_exp_method="max", str round="nearest"'
_LIBRARIES = [torch.library.Library(name, "DEF") for name in ("circle_custom", "tensor_cast")]
_OPERATORS = {
    f"circle_custom::mx_fake_quantize({_MX}) -> Tensor": (
        _mx_fake_quantize,
        lambda input_, *args, **_: torch.empty_like(input_),
    ),
    f"circle_custom::quantize_mx({_MX}) -> Tensor": (
        _itself,
        lambda input_, *args, **_: torch.empty_like(input_),
    ),
    f"circle_custom::dequantize_mx({_MX}) -> Tensor": (
        _itself,
        lambda input_, *args, **_: torch.empty_like(input_),
    ),
    "tensor_cast::quantize(Tensor x, Tensor scale, Tensor? offset, ScalarType out_dtype=int8) -> Tensor": (
        _quantize,
        lambda x, scale, offset, out_dtype=torch.int8: torch.empty_like(x, dtype=out_dtype),
    ),
    f"tensor_cast::dynamic_quantize_symmetric({_DYNAMIC}) -> (Tensor, Tensor)": (
        _dynamic_symmetric,
        lambda x, dims, scale_dtype=torch.float32, out_dtype=torch.int8: (
            torch.empty_like(x, dtype=out_dtype),
            x.new_empty(_shape(x, dims), dtype=scale_dtype),
        ),
    ),
    f"tensor_cast::dynamic_quantize_asymmetric({_DYNAMIC}) -> (Tensor, Tensor, Tensor)": (
        _dynamic_asymmetric,
        lambda x, dims, scale_dtype=torch.float32, out_dtype=torch.int8: (
            torch.empty_like(x, dtype=out_dtype),
            x.new_empty(_shape(x, dims), dtype=scale_dtype),
            x.new_empty(_shape(x, dims), dtype=torch.int32),
        ),
    ),
    "tensor_cast::dynamic_quantize_mxfp4(Tensor x, int group_size) -> (Tensor, Tensor)": (
        _dynamic_mxfp4,
        _fake_mxfp4,
    ),
}

for _schema, (_kernel, _fake) in _OPERATORS.items():
    _name = _schema.partition("(")[0]
    _space = _name.partition("::")[0]
    (_library,) = [one for one in _LIBRARIES if one.ns == _space]
    _library.define(_schema.partition("::")[2])
    _library.impl(_name.partition("::")[2], _kernel, "CPU")
    torch.library.register_fake(_name, _fake, lib=_library)
