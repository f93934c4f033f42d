"""Packed weights and linear layers of the compiled core (core/linear.h) for numpy arrays."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from blockscale.errors import CombinationError, DtypeError, ShapeError, UnknownNameError
from blockscale.numerics import native
from blockscale.numerics.layout import Layout, bind, check_fits
from blockscale.numerics.native import POOL, Array, Stored
from blockscale.numerics.scheme import Scheme

Activation = Literal["none", "relu", "gelu", "gelu_tanh", "silu"]
ACTIVATIONS: tuple[Activation, ...] = ("none", "relu", "gelu", "gelu_tanh", "silu")
_INDEX = {name: i for i, name in enumerate(ACTIVATIONS)}


class PackedWeight:
    """W [N, K] as the kernels want it, made of its stored form; `transposed`: stored as Wᵀ [K, N].

    Immutable, and without the arrays that it was made of.
    """

    def __init__(
        self, codes: Array, layout: Layout, params: Stored, *, transposed: bool = False, threads: int = 0
    ) -> None:
        if layout.rank != 2:
            raise ShapeError("shape of the weight", layout.shape, "two dimensions")
        native.require_isa()
        check_fits(layout)
        native.check_codes(codes, layout)
        codes = native.dense(codes)
        n, k = layout.shape[::-1] if transposed else layout.shape
        block_n, block_k = layout.block[::-1] if transposed else layout.block
        self.shape = (n, k)
        self.layout = layout
        self._core = native.CoreWeight(
            native.core_numbers(layout.numbers), transposed, n, k, block_n, block_k, codes.ctypes.data,
            codes.nbytes, native.given(params, None, layout), POOL, threads,
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        return int(self._core.bytes)

    def linear(
        self, x: Array, bias: Array | None = None, *, scheme: Scheme | None = None,
        params: Stored | None = None, stored: tuple[Layout, Stored] | None = None, activation: Activation = "none",
        out_dtype: str = "f32", out: Array | None = None, host: int = POOL, threads: int = 0,
    ) -> Array:  # fmt: skip
        """activation(x · Wᵀ + bias) for x [M, K].

        scheme    x is quantized by it first, with `params` if they are given; None: x as it is
        stored    x holds packed codes of this layout, with their parameters
        """
        form = native.CoreInput()
        if stored is not None:
            layout, params_of_x = stored
            native.check_codes(x, layout)
            rows, length = layout.shape
            _describe(form, layout)
            form.coded = True
            form.given = native.given(params_of_x, None, layout)
            x, kind = native.dense(x), 0
        else:
            x, kind = _values(x)
            rows, length = x.shape
            if scheme is not None:
                layout = bind(scheme, x.shape)
                _describe(form, layout)
                form.given = native.given(params, None, layout)
        if length != self.shape[1]:
            raise ShapeError("x.shape", x.shape, f"[M, {self.shape[1]}]: K of the weight")
        if activation not in _INDEX:
            raise UnknownNameError("activation", activation, ACTIVATIONS)
        if bias is not None:
            bias = _bias(bias, self.shape[0])
        if out is None:
            out = np.empty((rows, self.shape[0]), native.tensor_dtype(out_dtype))
        y, y_kind = _values(out)
        self._core.linear(
            rows, form, x.ctypes.data, _reach(x), kind, _pitch(x), y.ctypes.data, _reach(y), y_kind, _pitch(y),
            0 if bias is None else bias.ctypes.data, 0 if bias is None else bias.nbytes,
            _INDEX[activation], host, threads,
        )  # fmt: skip
        if y is not out:
            out[...] = y
        return out


def _describe(form: native.CoreInput, layout: Layout) -> None:
    if layout.block[0] not in (0, 1) and layout.scale_shape[0] != layout.shape[0]:
        raise CombinationError(f"x in blocks of {layout.block}: rows must be on their own, or all share")
    form.quantized_by(native.core_numbers(layout.numbers))
    form.block_rows, form.block = layout.block


def _values(a: Any) -> tuple[Array, int]:
    """Rows whose elements lie beside each other."""
    kind = native.type_of(a)
    if a.ndim != 2:
        raise ShapeError("shape", a.shape, "two dimensions")
    pitch, step = a.strides
    whole = a.size == 0 or (
        a.flags.aligned and (step == a.itemsize or a.shape[1] == 1) and pitch % a.itemsize == 0
        and (pitch >= a.shape[1] * a.itemsize or a.shape[0] == 1)
    )  # fmt: skip
    return (a if whole else a.copy(order="C")), kind


def _pitch(a: Array) -> int:
    return int(max(a.strides[0] // a.itemsize, a.shape[1]) if a.ndim == 2 and a.shape[0] > 1 else a.shape[-1])


def _reach(a: Array) -> int:
    return 0 if a.size == 0 else int((a.shape[0] - 1) * a.strides[0] + a.shape[1] * a.itemsize)


def _bias(bias: Array, n: int) -> Array:
    if bias.dtype != np.float32:
        raise DtypeError("bias", bias.dtype, "float32")
    if bias.shape != (n,):
        raise ShapeError("bias.shape", bias.shape, f"({n},)")
    return native.dense(bias)
