"""Our operators for onnx's reference evaluator, on the compiled core: what they mean, to the bit.

The operator library for ONNX Runtime (core/ort) computes the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx.reference.op_run import OpRun

from blockscale.errors import ArgumentError, DtypeError, ScaleError, ShapeError
from blockscale.graph.onnx_quantizers import DOMAIN
from blockscale.numerics import native
from blockscale.numerics.arrays import TENSOR_DTYPES, Array
from blockscale.numerics.layout import Layout
from blockscale.numerics.native import Stored
from blockscale.numerics.scheme import Numbers, numbers_named


@lru_cache(maxsize=4096)
def layout_of(numbers: Numbers, shape: tuple[int, ...], block: tuple[int, ...]) -> Layout:
    return Layout(numbers, shape, block)


def _stored(layout: Layout, scale: Any, zero_point: Any, tensor_scale: Any) -> Stored | None:
    """A tensor of shape (0,) is none: DynamicQuantize gives it, and runtimes want one in each place."""
    if scale is not None and scale.shape == (0,) and layout.scale_shape != (0,):
        scale = None
    if zero_point is not None and zero_point.shape == (0,) and scale is None:
        zero_point = None
    if zero_point is not None and scale is None:
        raise ScaleError("zero_point", "given without scale", "both or neither")
    if zero_point is not None and zero_point.shape == (0,) and not layout.numbers.zero_point:
        zero_point = None
    if tensor_scale is not None and tensor_scale.shape == (0,) and not layout.numbers.tensor_scale:
        tensor_scale = None
    return None if scale is None else Stored(scale, zero_point, tensor_scale)


def _given(tensor_scale: Any, params: Stored | None) -> float | None:
    """The tensor scale of what is dynamic in its scales alone."""
    if tensor_scale is None or params is not None or tensor_scale.shape == (0,):
        return None
    if tensor_scale.dtype != np.float32:
        raise DtypeError("tensor_scale", tensor_scale.dtype, "float32")
    if tensor_scale.shape != ():
        raise ScaleError("tensor_scale shape", tensor_scale.shape, "()")
    return float(tensor_scale)


class FakeQuantize(OpRun):
    op_domain = DOMAIN

    def _run(
        self, x: Array, scale: Any = None, zero_point: Any = None, tensor_scale: Any = None, *,
        numbers: str, block: Sequence[int] = (), seed: int = 0,
    ) -> tuple[Array]:  # fmt: skip
        layout = layout_of(numbers_named(numbers), x.shape, tuple(block))
        params = _stored(layout, scale, zero_point, tensor_scale)
        t = _given(tensor_scale, params)
        return (native.fake_quantize(x, layout, params, tensor_scale=t, seed=_seed(seed)),)


class Quantize(OpRun):
    op_domain = DOMAIN

    def _run(
        self, x: Array, scale: Any, zero_point: Any = None, tensor_scale: Any = None, *,
        numbers: str, block: Sequence[int] = (), seed: int = 0,
    ) -> tuple[Array]:  # fmt: skip
        layout = layout_of(numbers_named(numbers), x.shape, tuple(block))
        params = _stored(layout, scale, zero_point, tensor_scale)
        if params is None:
            raise ScaleError("scale", None, "given; DynamicQuantize measures it")
        return (native.quantize(x, layout, params, seed=_seed(seed))[0],)


class DynamicQuantize(OpRun):
    op_domain = DOMAIN

    def _run(
        self, x: Array, tensor_scale: Any = None, *, numbers: str, block: Sequence[int] = (), seed: int = 0
    ) -> tuple[Array, ...]:
        layout = layout_of(numbers_named(numbers), x.shape, tuple(block))
        t = _given(tensor_scale, None)
        codes, params = native.quantize(x, layout, tensor_scale=t, seed=_seed(seed))
        zeros, scale = params.zero_points, params.tensor_scale
        return (
            codes, params.scales, np.empty(0, np.int32) if zeros is None else zeros,
            np.empty(0, np.float32) if scale is None else scale,
        )  # fmt: skip


class Dequantize(OpRun):
    op_domain = DOMAIN

    def _run(
        self, codes: Array, scale: Any, zero_point: Any = None, tensor_scale: Any = None, *,
        numbers: str, block: Sequence[int] = (), shape: Sequence[int] = (), dtype: int = 1,
    ) -> tuple[Array]:  # fmt: skip
        found = numbers_named(numbers)
        layout = layout_of(found, _sizes(found, codes, tuple(shape)), tuple(block))
        return (
            native.dequantize(
                codes, layout, _needed(layout, scale, zero_point, tensor_scale), _tensor_format(dtype)
            ),
        )


class MatMul(OpRun):
    """x · W + bias in float32, W from its codes. A runtime adds in an order of its own: equal to a tolerance."""

    op_domain = DOMAIN

    def _run(
        self, x: Array, codes: Array, scale: Any, zero_point: Any = None, tensor_scale: Any = None,
        bias: Any = None, *, numbers: str, shape: Sequence[int], block: Sequence[int], trans_b: int = 0,
        x_numbers: str = "", x_block: int = 0,
    ) -> tuple[Array]:  # fmt: skip
        if len(shape) != 2 or min(shape) < 0:
            raise ShapeError("shape", tuple(shape), "two sizes, those of the decoded weight")
        if trans_b not in (0, 1):
            raise ArgumentError("trans_b", trans_b, "0 (weight [K, N]) or 1 ([N, K])")
        layout = layout_of(numbers_named(numbers), tuple(shape), tuple(block))
        weight = native.dequantize(codes, layout, _needed(layout, scale, zero_point, tensor_scale))
        weight = weight.T if trans_b else weight
        _check_product(x, weight, bias)
        if x_numbers:
            block = (*(1,) * (x.ndim - 1), x_block)
            x = native.fake_quantize(x, layout_of(numbers_named(x_numbers), x.shape, block))
        y = np.matmul(x.astype(np.float32), weight)
        if bias is not None:
            y = y + bias.astype(np.float32)
        return (_saturated(y, x.dtype),)


def _check_product(x: Array, weight: Array, bias: Any) -> None:
    inner, columns = weight.shape
    if x.ndim == 0 or x.shape[-1] != inner:
        raise ShapeError("x.shape", x.shape, f"K = {inner} in the last dimension")
    if bias is not None and bias.dtype != x.dtype:
        raise DtypeError("bias", bias.dtype, f"{x.dtype}, like x")
    if bias is not None and bias.shape != (columns,):
        raise ShapeError("bias.shape", bias.shape, f"({columns},)")


def _saturated(y: Array, dtype: np.dtype[Any]) -> Array:
    """A finite value beyond the dtype becomes its largest, as in every result of ours."""
    if dtype == np.float32:
        return y
    limit = np.float32(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
    bounded: Array = np.where(np.isfinite(y), np.clip(y, -limit, limit), y).astype(dtype)
    return bounded


def _needed(layout: Layout, scale: Any, zero_point: Any, tensor_scale: Any) -> Stored:
    stored = _stored(layout, scale, zero_point, tensor_scale)
    if stored is None:
        raise ScaleError("scale", None, "given")
    return stored


def _seed(seed: int) -> int:
    """Attributes are signed."""
    return int(seed) % (1 << 64)


def _sizes(numbers: Numbers, codes: Array, shape: tuple[int, ...]) -> tuple[int, ...]:
    """-1 is the size that the codes have; in the last dimension, times their number a byte."""
    if len(shape) != codes.ndim and -1 in shape:
        raise ShapeError("shape", shape, f"as many sizes as the codes of shape {codes.shape} have")
    element = numbers.element_format
    last = len(shape) - 1
    per_byte = 8 // element.bits if element.packed else 1
    return tuple(
        n if n != -1 else codes.shape[i] * (per_byte if i == last else 1) for i, n in enumerate(shape)
    )


def _tensor_format(dtype: int) -> str:
    wanted = onnx.helper.tensor_dtype_to_np_dtype(dtype)
    for name, one in TENSOR_DTYPES.items():
        if one == wanted:
            return name
    raise DtypeError("dtype", wanted, ", ".join(map(str, TENSOR_DTYPES.values())))


OURS: tuple[type[OpRun], ...] = (FakeQuantize, Quantize, DynamicQuantize, Dequantize, MatMul)
