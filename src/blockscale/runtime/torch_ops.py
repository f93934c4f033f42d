"""The codec for torch tensors: the functions of `numerics.native`, as calls of torch.ops.blockscale.*.

A Scheme fits any shape, also a symbolic one (torch.export, torch.compile); a Layout has its own.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from blockscale.errors import DtypeError, OutError, ScaleError, ShapeError
from blockscale.numerics.layout import Layout, bind
from blockscale.numerics.native import Stored, checked_seed
from blockscale.numerics.scheme import Scheme
from blockscale.runtime import torch_cpu, torch_library
from blockscale.runtime.torch_arrays import DTYPES
from blockscale.runtime.torch_bound import FORMAT_OF, Gradient

_operators = torch.ops.blockscale
_library = torch_library.LIBRARY  # the operators exist as long as it does


def fake_quantize(
    x: Tensor, layout: Layout | Scheme, params: Stored | None = None, *,
    tensor_scale: float | Tensor | None = None, seed: int = 0, gradient: Gradient = "straight",
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Quantize and dequantize at once; same dtype out. `out=x` works in place, without gradient."""
    numbers, block = _place(x, layout)
    scale, zero_point, t = _given(params, tensor_scale, x)
    if out is None:
        return _operators.fake_quantize.default(  # type: ignore[no-any-return]
            x, numbers, block, scale, zero_point, t, gradient=gradient, seed=_signed(seed)
        )
    return _operators.fake_quantize.out(  # type: ignore[no-any-return]
        x, numbers, block, scale, zero_point, t, gradient=gradient, seed=_signed(seed), out=out
    )


def quantize(
    x: Tensor, layout: Layout | Scheme, params: Stored | None = None, *,
    tensor_scale: float | Tensor | None = None, seed: int = 0,
) -> tuple[Tensor, Stored]:  # fmt: skip
    """Stored codes, and the parameters that decode them (the given ones, or chosen from x)."""
    numbers, block = _place(x, layout)
    scale, zero_point, t = _given(params, tensor_scale, x)
    if params is None:
        codes, *chosen = _operators.dynamic_quantize.default(x, numbers, block, t, seed=_signed(seed))
        return codes, _stored(layout, *chosen)
    codes = _operators.quantize.default(x, numbers, block, scale, zero_point, t, seed=_signed(seed))
    return codes, params


def choose_params(
    x: Tensor, layout: Layout | Scheme, *, tensor_scale: float | Tensor | None = None
) -> Stored:
    """Scales and zero points from the data, by the rule of the layout."""
    numbers, block = _place(x, layout)
    _, _, t = _given(None, tensor_scale, x)
    return _stored(layout, *_operators.choose_params.default(x, numbers, block, t))


def dequantize(
    codes: Tensor, layout: Layout, params: Stored, dtype: str | torch.dtype = "f32",
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Values of stored codes in the tensor format `dtype` (f32, bf16, f16, or the dtype itself)."""
    if out is not None and out.shape != layout.shape:
        raise OutError("out shape", tuple(out.shape), f"{layout.shape}, that of the layout")
    wanted = out.dtype if out is not None else DTYPES.get(dtype, dtype) if isinstance(dtype, str) else dtype
    if wanted not in FORMAT_OF:
        raise DtypeError("out" if out is not None else "dtype", wanted, f"one of {', '.join(DTYPES)}")
    numbers, block = _place_of(layout, layout.rank)
    if out is not None and _takes_values(out, codes):
        torch_cpu.dequantize_into(
            out, codes, params.scales, params.zero_points, params.tensor_scale, numbers, block
        )
        if not out.is_inference():
            torch.autograd.graph.increment_version(out)
        return out
    y: Tensor = _operators.dequantize.default(
        codes, params.scales, params.zero_points, params.tensor_scale, numbers, layout.shape, block,
        dtype=wanted,
    )  # fmt: skip
    return y if out is None else out.copy_(y)


def _takes_values(out: Tensor, codes: Tensor) -> bool:
    """Whether the core can write to it at once: plain memory in order, of the CPU, that no gradient watches."""
    if torch.compiler.is_compiling() or type(out) is not Tensor or type(codes) is not Tensor:
        return False
    watched = torch.is_grad_enabled() and out.requires_grad
    return (
        out.device.type == codes.device.type == "cpu"
        and out.is_contiguous()
        and not watched
        and out.data_ptr() % 4 == 0
    )


def _place(x: Tensor, layout: Layout | Scheme) -> tuple[str, tuple[int, ...]]:
    """The numbers and the block for the operators."""
    if isinstance(layout, Layout) and x.shape != layout.shape:
        raise ShapeError("x.shape", tuple(x.shape), f"{layout.shape}, that of the layout")
    numbers, block = _place_of(layout, x.dim())
    return numbers, block


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _place_of(layout: Layout | Scheme, rank: int) -> tuple[str, tuple[int, ...]]:
    if isinstance(layout, Layout):
        return str(layout.numbers), layout.block
    return _place_of_scheme(layout, rank)


@lru_cache(maxsize=1024)
def _place_of_scheme(scheme: Scheme, rank: int) -> tuple[str, tuple[int, ...]]:
    return str(scheme.numbers), bind(scheme, (1,) * rank).block


def _given(
    params: Stored | None, tensor_scale: float | Tensor | None, x: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if tensor_scale is not None and not isinstance(tensor_scale, Tensor):
        tensor_scale = _scalar(tensor_scale, x)
    if params is None:
        return None, None, tensor_scale
    return params.scales, params.zero_points, params.tensor_scale if tensor_scale is None else tensor_scale


def _scalar(value: object, x: Tensor) -> Tensor:
    """A number as float32 tensor; whether it is a scale is checked by the operator."""
    if not isinstance(value, int | float | np.generic | np.ndarray) or isinstance(value, bool):
        raise DtypeError("tensor_scale", f"of a {type(value).__name__}", "a number or a tensor of shape ()")
    if isinstance(value, int) and abs(value) >= 1 << 128:
        raise ScaleError("tensor_scale", value, "positive and finite in float32")
    return torch.tensor(value, dtype=torch.float32, device=x.device)


def _stored(layout: Layout | Scheme, scales: Tensor, zeros: Tensor, t: Tensor) -> Stored:
    numbers = layout if isinstance(layout, Scheme) else layout.numbers
    return Stored(scales, zeros if numbers.zero_point else None, t if numbers.tensor_scale else None)


def _signed(seed: int) -> int:
    """Schemas have signed integers: the same 64 bits."""
    seed = checked_seed(seed)
    return seed - (1 << 64) if seed >= 1 << 63 else seed
