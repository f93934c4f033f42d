"""Fused operators that are several of ATen, written once: to be run, and to be taken apart in a graph.

A norm that a model spells out rounds at other places than ATen's; `form` says which spelling it is, so that
fusing keeps its bits. Mean and variance are taken in float32.

    rms_norm     h = x / rms(x), in float32
    aten             aten.rms_norm
    weight_last      h rounded to x's dtype, then times the weight (Llama)
    weight_first     h times the weight in float32, then rounded (what ATen's decomposes into)
    one_plus_weight  h times (1 + weight) in float32, then rounded (Gemma)

    layer_norm   h = (x − mean(x)) / deviation(x), in float32, rounded to x's dtype before weight and bias
    aten             aten.layer_norm
    rsqrt            the division is a product with rsqrt(variance + eps)
    sqrt             the division is one by sqrt(variance + eps)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from blockscale.errors import ArgumentError, UnknownNameError

RMS_FORMS = ("aten", "weight_last", "weight_first", "one_plus_weight")
LAYER_FORMS = ("aten", "rsqrt", "sqrt")

T = TypeVar("T")


class Builder(Protocol[T]):
    """Runs operators of ATen, or writes them into a graph."""

    def call(self, name: str, operands: Sequence[T | None], settings: Mapping[str, Any] | None = None) -> T:
        """`settings` by ATen's names; operands in the order of OPS."""

    def cast(self, x: T, like: T | str) -> T:
        """x in a dtype, or in that of another; x itself where it has it."""


def _identity(b: Builder[T], x: T) -> T:
    return x


def _rms_norm(
    b: Builder[T], input: T, weight: T | None, normalized_shape: Sequence[Any], eps: float | None = None,
    form: str = "aten",
) -> T:  # fmt: skip
    if form not in RMS_FORMS:
        raise UnknownNameError("form", form, RMS_FORMS)
    if form == "aten":
        settings = {"normalized_shape": normalized_shape, "eps": eps}
        return b.call("aten.rms_norm.default", (input, weight), settings)
    x = b.cast(input, "float32")
    h = b.call(
        "aten.mul.Tensor", (x, b.call("aten.rsqrt.default", (_mean_square(b, x, normalized_shape, eps),)))
    )
    if form == "weight_last" or weight is None:
        h = b.cast(h, input)
        return h if weight is None else b.call("aten.mul.Tensor", (weight, h))
    factor = b.cast(weight, "float32")
    if form == "one_plus_weight":
        factor = b.call("aten.add.Scalar", (factor,), {"other": 1.0})
    return b.cast(b.call("aten.mul.Tensor", (h, factor)), input)


def _layer_norm(
    b: Builder[T], input: T, weight: T | None, bias: T | None, normalized_shape: Sequence[Any],
    eps: float = 1e-5, form: str = "aten",
) -> T:  # fmt: skip
    if form not in LAYER_FORMS:
        raise UnknownNameError("form", form, LAYER_FORMS)
    if form == "aten":
        settings = {"normalized_shape": normalized_shape, "eps": eps}
        return b.call("aten.layer_norm.default", (input, weight, bias), settings)
    x = b.cast(input, "float32")
    centred = b.call("aten.sub.Tensor", (x, _mean(b, x, normalized_shape)))
    variance = _mean_square(b, centred, normalized_shape, eps)
    if form == "rsqrt":
        h = b.call("aten.mul.Tensor", (centred, b.call("aten.rsqrt.default", (variance,))))
    else:
        h = b.call("aten.div.Tensor", (centred, b.call("aten.sqrt.default", (variance,))))
    h = b.cast(h, input)
    if weight is not None:
        h = b.call("aten.mul.Tensor", (h, weight))
    return h if bias is None else b.call("aten.add.Tensor", (h, bias))


def _mean(b: Builder[T], x: T, normalized_shape: Sequence[Any]) -> T:
    dims = tuple(range(-len(normalized_shape), 0))
    return b.call("aten.mean.dim", (x,), {"dim": dims, "keepdim": True})


def _mean_square(b: Builder[T], x: T, normalized_shape: Sequence[Any], eps: float | None) -> T:
    """With eps added."""
    if eps is None:
        raise ArgumentError("eps", None, "a number, for every form but 'aten'")
    squares = b.call("aten.pow.Tensor_Scalar", (x,), {"exponent": 2})
    return b.call("aten.add.Scalar", (_mean(b, squares, normalized_shape),), {"other": eps})


def _add_rms_norm(b: Builder[T], input: T, residual: T, **rest: Any) -> tuple[T, T]:
    total = b.call("aten.add.Tensor", (input, residual))
    return _rms_norm(b, total, **rest), total


def _add_layer_norm(b: Builder[T], input: T, residual: T, **rest: Any) -> tuple[T, T]:
    total = b.call("aten.add.Tensor", (input, residual))
    return _layer_norm(b, total, **rest), total


# By the names of rows; those that are missing are the operator of ATen that their row names.
COMPOSITIONS: dict[str, Callable[..., Any]] = {
    "requantize": _identity,
    "rms_norm": _rms_norm,
    "rms_norm_quantize": _rms_norm,
    "layer_norm": _layer_norm,
    "layer_norm_quantize": _layer_norm,
    "add_rms_norm_quantize": _add_rms_norm,
    "add_layer_norm_quantize": _add_layer_norm,
}
