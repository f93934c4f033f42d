"""Where the channels of a product with a weight are: in its input, in the weight, in its bias and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from blockscale.graph.view import Node, Value

KINDS = ("linear", "matmul", "gemm", "conv", "conv_transpose")
Shaped = Callable[[Any], Any]


@dataclass(frozen=True)
class Product:
    """A node of KINDS whose second operand is the weight.

    x_axis, y_axis  of channels in the input and in the result, from the front
    inward, outward a vector over input or output channels → an array that broadcasts to the weight
    pads            zeros join the input
    """

    node: Node
    x_axis: int
    y_axis: int
    inward: Shaped
    outward: Shaped
    pads: bool = False

    @property
    def x(self) -> Value:
        return self._operand(0)

    @property
    def weight(self) -> Value:
        return self._operand(1)

    @property
    def bias(self) -> Value | None:
        return self.node.operand(2)

    def _operand(self, index: int) -> Value:
        value = self.node.operand(index)
        assert value is not None
        return value


def product_of(node: Node) -> Product | str:
    """How a node of KINDS multiplies; or what is not known of it."""
    shapes = [
        None if v is None or v.meta is None else v.meta.shape for v in (*node.operands[:2], node.outputs[0])
    ]
    x, w, y = shapes
    if x is None or w is None or y is None:
        return "a shape is not known"
    if any(not isinstance(n, int) for n in w) or len(w) < 2 or not x:
        return "its second operand is no matrix of known sizes"
    if node.kind in ("conv", "conv_transpose"):
        return _convolution(node, len(x), tuple(n for n in w if isinstance(n, int)))
    if node.kind == "gemm":
        if (node.params.get("alpha", 1.0), node.params.get("beta", 1.0)) != (1.0, 1.0):
            return "its alpha or beta is not 1"
        x_axis = 0 if node.params.get("trans_a") else 1
        return Product(node, x_axis, 1, *(_ROWS if node.params.get("trans_b") else _COLUMNS))
    return Product(node, len(x) - 1, len(y) - 1, *(_ROWS if node.kind == "linear" else _COLUMNS))


_ROWS: tuple[Shaped, Shaped] = (lambda f: f[None, :], lambda f: f[:, None])  # weight [N, K]
_COLUMNS: tuple[Shaped, Shaped] = (lambda f: f[:, None], lambda f: f[None, :])  # weight [K, N]


def _convolution(node: Node, rank: int, w: tuple[int, ...]) -> Product | str:
    groups = node.params.get("groups") or 1
    if "padding" not in node.params and "pads" not in node.params:
        return "its padding is not known"
    axis = rank - len(w) + 1
    if axis not in (0, 1):
        return "its input has no channels"
    tail = (1,) * (len(w) - 2)

    def plain(f: Any) -> Any:
        """Over dimension 0 of the weight."""
        return f.reshape(-1, 1, *tail)

    def grouped(f: Any) -> Any:
        """Over dimension 1 within each group of dimension 0."""
        return np.repeat(f.reshape(groups, w[1]), w[0] // groups, 0).reshape(w[0], w[1], *tail)

    padding = node.params.get("padding", node.params.get("pads"))
    numbers = padding if isinstance(padding, list | tuple) else (padding,)
    pads = any(n != 0 for n in numbers) or node.params.get("auto_pad", "NOTSET") != "NOTSET"
    if node.kind == "conv":
        return Product(node, axis, axis, grouped, plain, pads)
    return Product(node, axis, axis, plain, grouped, pads=True)
