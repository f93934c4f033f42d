"""torch.ops.blockscale.*: schemas, kernels by device, fake kernels and gradients.

numbers       str(Numbers), which `numbers_named` reads
block         as in Layout.block: one entry a dimension, 0 a whole dimension
scale, codes  stored as `numerics.invariants` says, for torch dtypes of the same names
seed          64 bits, as a signed integer
gradient      of fake_quantize: `straight` is the identity, `clipped` is 0 where x is out of its block's range

Where numbers have no zero point or no tensor scale, dynamic_quantize and choose_params return a tensor of
shape (0,) in its place, and the other operators take it for None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from blockscale.errors import ArgumentError, BlockError, DtypeError, OutError, ShapeError
from blockscale.numerics.scheme import Numbers, numbers_named
from blockscale.runtime import torch_cpu, torch_reference
from blockscale.runtime.torch_bound import (
    check_codes_exist,
    check_gradient,
    check_strided,
    checked_presence,
    code_dtype,
    scale_dtype,
    type_index,
)

_PARAMS = "Tensor? scale=None, Tensor? zero_point=None, Tensor? tensor_scale=None"
_FAKE = f"Tensor x, str numbers, SymInt[] block, {_PARAMS}, *, str gradient='straight', int seed=0"
SCHEMAS = (
    f"fake_quantize({_FAKE}) -> Tensor",
    f"fake_quantize.out({_FAKE}, Tensor(a!) out) -> Tensor(a!)",
    "quantize(Tensor x, str numbers, SymInt[] block, Tensor scale, Tensor? zero_point=None, "
    "Tensor? tensor_scale=None, *, int seed=0) -> Tensor",
    "dynamic_quantize(Tensor x, str numbers, SymInt[] block, Tensor? tensor_scale=None, *, int seed=0) "
    "-> (Tensor codes, Tensor scales, Tensor zero_points, Tensor tensor_scale)",
    "choose_params(Tensor x, str numbers, SymInt[] block, Tensor? tensor_scale=None) "
    "-> (Tensor scale, Tensor zero_point, Tensor tensor_scale)",
    "dequantize(Tensor codes, Tensor scale, Tensor? zero_point, Tensor? tensor_scale, str numbers, "
    "SymInt[] shape, SymInt[] block, *, ScalarType dtype) -> Tensor",
    # For the backward pass of fake_quantize: where x is within the range of its block.
    f"unsaturated(Tensor x, str numbers, SymInt[] block, {_PARAMS}) -> Tensor",
)

# ------------------------------------------------------------------------------------ fake kernels
# They return fresh tensors, never an argument: otherwise x + F(x) is exported as F(x) + F(x).


def _fake_fake_quantize(
    x: Tensor, numbers: str, block: Sequence[int], scale: Tensor | None = None,
    zero_point: Tensor | None = None, tensor_scale: Tensor | None = None, *,
    gradient: str = "straight", seed: int = 0,
) -> Tensor:  # fmt: skip
    check_gradient(gradient)
    _fake_params(_fake_input(x, numbers, block), x, block, scale, zero_point, tensor_scale)
    return torch.empty_like(x)


def _fake_fake_quantize_out(
    x: Tensor, numbers: str, block: Sequence[int], scale: Tensor | None = None,
    zero_point: Tensor | None = None, tensor_scale: Tensor | None = None, *,
    gradient: str = "straight", seed: int = 0, out: Tensor,
) -> Tensor:  # fmt: skip
    check_gradient(gradient)
    _fake_params(_fake_input(x, numbers, block), x, block, scale, zero_point, tensor_scale)
    if out.dtype is not x.dtype or out.device != x.device or out.dim() != x.dim():
        given = f"{out.dtype}{list(out.shape)} on {out.device}"
        raise OutError("out", given, f"{x.dtype}{list(x.shape)} on {x.device}, like x")
    return out


def _fake_quantize(
    x: Tensor, numbers: str, block: Sequence[int], scale: Tensor, zero_point: Tensor | None = None,
    tensor_scale: Tensor | None = None, *, seed: int = 0,
) -> Tensor:  # fmt: skip
    parsed = _fake_input(x, numbers, block)
    check_codes_exist(parsed)
    _fake_params(parsed, x, block, scale, zero_point, tensor_scale)
    return _codes(x, parsed)


def _fake_dynamic_quantize(
    x: Tensor, numbers: str, block: Sequence[int], tensor_scale: Tensor | None = None, *, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scale, zero_point, t = _fake_choose_params(x, numbers, block, tensor_scale)
    return _codes(x, numbers_named(numbers)), scale, zero_point, t


def _fake_choose_params(
    x: Tensor, numbers: str, block: Sequence[int], tensor_scale: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    parsed = _fake_input(x, numbers, block)
    check_codes_exist(parsed)
    _fake_params(parsed, x, block, None, None, tensor_scale)
    shape = _scale_shape(x.shape, block)
    return (
        x.new_empty(shape, dtype=scale_dtype(parsed)),
        x.new_empty(shape if parsed.zero_point else (0,), dtype=torch.int32),
        x.new_empty(() if parsed.tensor_scale else (0,), dtype=torch.float32),
    )


def _fake_dequantize(
    codes: Tensor, scale: Tensor, zero_point: Tensor | None, tensor_scale: Tensor | None, numbers: str,
    shape: Sequence[int], block: Sequence[int], *, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    parsed = numbers_named(numbers)
    check_codes_exist(parsed)
    type_index("dtype", dtype)
    if codes.dtype is not code_dtype(parsed):
        raise DtypeError("codes", codes.dtype, f"{code_dtype(parsed)} for codes of {parsed.element}")
    if len(block) != len(shape) or codes.dim() != len(shape):
        raise BlockError("block", tuple(block), f"one entry a dimension of shape {tuple(shape)}")
    y = codes.new_empty(shape, dtype=dtype)
    _fake_params(parsed, y, block, scale, zero_point, tensor_scale)
    return y


def _fake_unsaturated(
    x: Tensor, numbers: str, block: Sequence[int], scale: Tensor | None = None,
    zero_point: Tensor | None = None, tensor_scale: Tensor | None = None,
) -> Tensor:  # fmt: skip
    _fake_params(_fake_input(x, numbers, block), x, block, scale, zero_point, tensor_scale)
    return torch.empty_like(x, dtype=torch.bool)


def _fake_input(x: Tensor, numbers: str, block: Sequence[int]) -> Numbers:
    check_strided("x", x)
    type_index("x", x.dtype)
    if len(block) != x.dim():
        raise BlockError("block", tuple(block), f"one entry a dimension of shape {tuple(x.shape)}")
    return numbers_named(numbers)


def _fake_params(
    numbers: Numbers, x: Tensor, block: Sequence[int], scale: Tensor | None, zero_point: Tensor | None,
    tensor_scale: Tensor | None,
) -> None:  # fmt: skip
    """All but the values, and of shapes only what is known without a guard."""
    scale, zero_point, _ = checked_presence(numbers, x.device, scale, zero_point, tensor_scale)
    wanted = _scale_shape(x.shape, block)
    for name, given, dtype in (
        ("scale", scale, scale_dtype(numbers)), ("zero_point", zero_point, torch.int32)
    ):  # fmt: skip
        if given is None:
            continue
        if given.dtype is not dtype:
            raise DtypeError(name, given.dtype, f"{dtype} for {numbers}")
        pairs: Iterable[tuple[Any, Any]] = zip(given.shape, wanted, strict=False)
        known = ((n, m) for n, m in pairs if isinstance(n, int) and isinstance(m, int))
        if given.dim() != len(wanted) or any(n != m for n, m in known):
            raise ShapeError(f"{name} shape", tuple(given.shape), f"{tuple(wanted)}")


def _scale_shape(shape: Sequence[Any], block: Sequence[Any]) -> list[Any]:
    return [1 if b == 0 else (n + b - 1) // b for n, b in zip(shape, block, strict=True)]


def _codes(x: Tensor, numbers: Numbers) -> Tensor:
    element = numbers.element_format
    shape = list(x.shape)
    if element.packed and shape:
        shape[-1] = (shape[-1] * element.bits + 7) // 8
    return x.new_empty(shape, dtype=code_dtype(numbers))


# --------------------------------------------------------------------------------------- gradients

_after_autograd = torch._C._after_autograd_keyset


@lru_cache(maxsize=256)
def _cpu_is_next(keyset: int) -> bool:
    """Whether nothing (fake tensors, functionalization, …) stands between autograd and the CPU kernel."""
    keys = torch._C.DispatchKeySet.from_raw_repr(keyset) & torch._C._after_ADInplaceOrView_keyset
    return bool(keys.highestPriorityTypeId() == torch._C.DispatchKey.CPU)


def _below_autograd(
    operator: Any, cpu: Callable[..., Tensor], keyset: Any, *args: Any, **settings: Any
) -> Any:
    """The kernel that is next. Where that is the CPU's, Python calls Python: half the time of a dispatch."""
    if _cpu_is_next(keyset.raw_repr()):
        return cpu(*args, **settings)
    with torch._C._AutoDispatchBelowAutograd():
        return operator.redispatch(keyset & _after_autograd, *args, **settings)


class _FakeQuantize(torch.autograd.Function):
    """The old style, with ctx in forward, takes half the time; torch.func refuses both inside operators."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, gradient: str, seed: int, x: Tensor, *rest: Any) -> Any:
        ctx.clipped = gradient == "clipped"
        if ctx.clipped:
            numbers, block, *params = rest
            ctx.save_for_backward(x, *params)
            ctx.place = numbers, block
        return _below_autograd(
            _operators.fake_quantize.default, torch_cpu.fake_quantize, keyset, x, *rest,
            gradient=gradient, seed=seed,
        )  # fmt: skip

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        if ctx.clipped:
            x, *params = ctx.saved_tensors
            inside = _operators.unsaturated.default(x, *ctx.place, *params)
            grad = torch.where(inside, grad, torch.zeros((), dtype=grad.dtype, device=grad.device))
        return None, None, None, grad, None, None, None, None, None


def _differentiable_fake_quantize(
    keyset: Any, x: Tensor, numbers: str, block: Sequence[int], scale: Tensor | None = None,
    zero_point: Tensor | None = None, tensor_scale: Tensor | None = None, *,
    gradient: str = "straight", seed: int = 0,
) -> Any:  # fmt: skip
    if not x.requires_grad and scale is tensor_scale is None and _cpu_is_next(keyset.raw_repr()):
        return torch_cpu.fake_quantize(x, numbers, block, None, zero_point, gradient=gradient, seed=seed)
    if torch.is_grad_enabled():
        for name, given in (("scale", scale), ("tensor_scale", tensor_scale)):
            if given is not None and given.requires_grad:
                raise ArgumentError(
                    f"{name}.requires_grad",
                    True,
                    "False: fake_quantize has a gradient for x alone; detach it",
                )
        if x.requires_grad:
            return _FakeQuantize.apply(  # type: ignore[no-untyped-call]
                keyset, gradient, seed, x, numbers, block, scale, zero_point, tensor_scale
            )
    return _below_autograd(
        _operators.fake_quantize.default, torch_cpu.fake_quantize, keyset, x, numbers, block, scale,
        zero_point, tensor_scale, gradient=gradient, seed=seed,
    )  # fmt: skip


def _undifferentiable_out(keyset: Any, x: Tensor, *args: Any, out: Tensor, **settings: Any) -> Any:
    if torch.is_grad_enabled() and (x.requires_grad or out.requires_grad):
        raise OutError("out", "with a tensor that requires grad", "None, or under torch.no_grad()")
    return _below_autograd(
        _operators.fake_quantize.out, torch_cpu.fake_quantize_out, keyset, x, *args, out=out, **settings
    )


def _functional_out(x: Tensor, *args: Any, out: Tensor, **settings: Any) -> Tensor:
    """What torch.compile and torch.export make of a call with out=: torch has no rule for alias outputs."""
    return out.copy_(_operators.fake_quantize.default(x, *args, **settings))


# ------------------------------------------------------------------------------------ registration

LIBRARY: Any = torch.library.Library("blockscale", "DEF")  # type: ignore[no-untyped-call]
_operators = torch.ops.blockscale

_FAKES: dict[str, Callable[..., Any]] = {
    "fake_quantize": _fake_fake_quantize,
    "fake_quantize.out": _fake_fake_quantize_out,
    "quantize": _fake_quantize,
    "dynamic_quantize": _fake_dynamic_quantize,
    "choose_params": _fake_choose_params,
    "dequantize": _fake_dequantize,
    "unsaturated": _fake_unsaturated,
}


def _register() -> None:
    for schema in SCHEMAS:
        LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for name, fake in _FAKES.items():
        kernel = name.replace(".", "_")
        reference = getattr(torch_reference, kernel)
        LIBRARY.impl(name, getattr(torch_cpu, kernel, reference), "CPU")
        LIBRARY.impl(name, reference, "CompositeExplicitAutograd")
        torch.library.register_fake(f"blockscale::{name}", fake, lib=LIBRARY)
        if not name.startswith("fake_quantize"):  # what they return has no gradient
            LIBRARY.impl(name, torch.library.fallthrough_kernel, "Autograd")
    LIBRARY.impl("fake_quantize", _differentiable_fake_quantize, "Autograd", with_keyset=True)
    LIBRARY.impl("fake_quantize.out", _functional_out, "Functionalize")
    LIBRARY.impl("fake_quantize.out", _undifferentiable_out, "Autograd", with_keyset=True)


_register()
