"""Whether a factor beside a product can go into its weight without changing a bit; the weight aside."""

from __future__ import annotations

import math

import numpy as np

from blockscale.graph.bounds import Bounds, bounds_of, constant_bounds
from blockscale.graph.overlay import Graph
from blockscale.graph.products import Product
from blockscale.graph.scaling import Factor
from blockscale.graph.survival import dtype_of
from blockscale.graph.view import Value
from blockscale.numerics.moves import Expand, Slice, Split
from blockscale.numerics.through import PLACING

_NORMAL, _LARGEST = 2.0**-126, 2.0**127
_SAFE_LEAST, _SAFE_MOST = 2.0**-100, 2.0**126  # a fused multiply-add loses no bit between these


_GAPS = "its input may lie in memory with gaps, which the product closes: sums could be in another order"


def _has_gaps(value: Value) -> bool:
    """Whether it may be a view of part of a tensor, or of one with repetitions."""
    while value.producer is not None:
        move = value.producer.params.get("move")
        if isinstance(move, Slice | Split | Expand):
            return True
        source = value.producer.operand(0)
        if type(move) not in PLACING or source is None:
            return value.producer.kind == "raw"  # which may be a view too
        value = source
    return False


def inexact_before(graph: Graph, factor: Factor, product: Product) -> str:
    """Why product(x · k, W) may differ from product(x, W · k) where W · k is exact; empty if it does not.

    Where x · k is exact too, (x · k) · w and x · (w · k) are the same real number.
    """
    if _has_gaps(factor.x):
        return _GAPS
    magnitude = np.abs(factor.array)
    if (factor.array < 0).any() and product.pads:
        return "zeros that pad its input would be -0 times the factor"
    if (magnitude == 1).all():
        return ""
    if not (factor.exact and factor.powers_of_two):
        return "the factor is no power of two, so the products are rounded otherwise (fuse_scale_close)"
    if dtype_of(factor.x) != "float32":
        return f"in {dtype_of(factor.x)} the factor is exact only where it is 1 or -1"
    least, greatest = bounds_of(graph, factor.x)
    if least * magnitude.min() < _NORMAL or greatest * magnitude.max() > _LARGEST:
        return "its input times the factor may leave the range of float32 (fuse_scale_close)"
    return ""


def inexact_behind(graph: Graph, factor: Factor, product: Product) -> str:
    """Why product(x, W) · k may differ from product(x, W · k) where W · k is exact; empty if it does not.

    A power of two commutes with every rounding whose result is neither too small nor too large.
    """
    if _has_gaps(factor.x):
        return _GAPS
    if (factor.array == 1).all():
        return ""
    if (factor.array < 0).any():
        return "the negative of a sum that cancels is -0, and would be +0 (fuse_scale_close)"
    if not (factor.exact and factor.powers_of_two):
        return "the factor is no power of two, so sums are rounded otherwise (fuse_scale_close)"
    if dtype_of(factor.x) != "float32":
        return f"in {dtype_of(factor.x)} the factor is exact only where it is 1"
    x, w = bounds_of(graph, product.x), constant_bounds(graph, product.weight)
    b = Bounds(1.0, 0.0) if product.bias is None else constant_bounds(graph, product.bias)
    if w is None or b is None or product.weight.meta is None:
        return "its weight or bias is known only at run time"
    count = math.prod(
        graph.alphabet.numbers(product.weight.meta.shape)
    )  # at least that of the terms of a sum
    low, high = min(1.0, float(factor.array.min())), max(1.0, float(factor.array.max()))
    least = min(x.least * w.least, b.least) * low
    most = (count * x.greatest * w.greatest + b.greatest) * high
    if least < _SAFE_LEAST or not most < _SAFE_MOST:
        return "a product or a sum may come near the ends of float32 (fuse_scale_close)"
    return ""


def not_close(factor: Factor) -> str:
    dtype = dtype_of(factor.x)
    return "" if dtype == "float32" else f"{dtype} rounds more than the tolerance"
