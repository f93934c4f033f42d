"""Norms as models spell them, call by call; for tests of fusing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from passes.fx_graphs import Builder, aten

EPS = 1e-6
F32 = torch.float32
Write = Callable[..., fx.Node]


def cast(b: Builder, x: fx.Node, like: Any) -> fx.Node:
    """`like` is a dtype, or a node that has it."""
    dtype = like.meta["val"].dtype if isinstance(like, fx.Node) else like
    return x if x.meta["val"].dtype == dtype else b.call(aten.to.dtype, x, dtype)


def variance(b: Builder, x: fx.Node, *, product: bool = False) -> fx.Node:
    """With eps added."""
    square = b.call(aten.mul.Tensor, x, x) if product else b.call(aten.pow.Tensor_Scalar, x, 2)
    return b.call(aten.add.Tensor, b.call(aten.mean.dim, square, [-1], True), EPS)


def normed(b: Builder, x: fx.Node) -> fx.Node:
    x = cast(b, x, F32)
    return b.call(aten.mul.Tensor, x, b.call(aten.rsqrt.default, variance(b, x)))


def llama(b: Builder, x: fx.Node, w: fx.Node) -> fx.Node:
    return b.call(aten.mul.Tensor, w, cast(b, normed(b, x), x))


def llama_other_way(b: Builder, x: fx.Node, w: fx.Node) -> fx.Node:
    """Factors in the other order, x·x, eps a constant tensor, casts and names that do nothing."""
    wide = b.call(aten.to.dtype, cast(b, x, F32), F32)
    square = b.call(aten.mul.Tensor, wide, wide)
    eps = b.constant(torch.tensor(EPS))
    total = b.call(aten.add.Tensor, b.call(aten.mean.dim, square, [2], True), eps)
    inverse = b.call(aten.rsqrt.default, b.call(aten.alias.default, total))
    h = b.call(aten.mul.Tensor, inverse, wide)
    return b.call(aten.mul.Tensor, b.call(aten.detach.default, cast(b, h, x)), w)


def decomposed(b: Builder, x: fx.Node, w: fx.Node) -> fx.Node:
    """As run_decompositions writes aten.rms_norm: the weight is cast by the product."""
    wide = cast(b, x, F32)
    mean = b.call(aten.mean.dim, b.call(aten.pow.Tensor_Scalar, wide, 2), [2], True)
    h = b.call(aten.mul.Tensor, wide, b.call(aten.rsqrt.default, b.call(aten.add.Scalar, mean, EPS)))
    return cast(b, b.call(aten.mul.Tensor, h, w), x)


def weight_first(b: Builder, x: fx.Node, w: fx.Node) -> fx.Node:
    return cast(b, b.call(aten.mul.Tensor, normed(b, x), cast(b, w, F32)), x)


def gemma(b: Builder, x: fx.Node, w: fx.Node) -> fx.Node:
    factor = b.call(aten.add.Tensor, cast(b, w, F32), 1.0)
    return cast(b, b.call(aten.mul.Tensor, normed(b, x), factor), x)


def no_weight(b: Builder, x: fx.Node, w: fx.Node) -> fx.Node:
    return cast(b, normed(b, x), x)


def one_operator(b: Builder, x: fx.Node, w: fx.Node) -> fx.Node:
    return b.call(aten.rms_norm.default, x, [w.meta["val"].shape[0]], w, EPS)


RMS: dict[str, Write] = {
    "llama": llama, "llama_other_way": llama_other_way, "decomposed": decomposed,
    "weight_first": weight_first, "gemma": gemma, "no_weight": no_weight, "one_operator": one_operator,
}  # fmt: skip


def layer(b: Builder, x: fx.Node, w: fx.Node | None, bias: fx.Node | None, *, root: bool) -> fx.Node:
    wide = cast(b, x, F32)
    centred = b.call(aten.sub.Tensor, wide, b.call(aten.mean.dim, wide, [-1], True))
    spread = variance(b, centred, product=root)
    if root:
        h = b.call(aten.div.Tensor, centred, b.call(aten.sqrt.default, spread))
    else:
        h = b.call(aten.mul.Tensor, b.call(aten.rsqrt.default, spread), centred)
    h = cast(b, h, x)
    if w is not None:
        h = b.call(aten.mul.Tensor, w, h)
    return h if bias is None else b.call(aten.add.Tensor, bias, h)


def native(b: Builder, x: fx.Node, w: fx.Node | None, bias: fx.Node | None) -> fx.Node:
    return b.items(b.call(aten.native_layer_norm.default, x, [x.meta["val"].shape[-1]], w, bias, EPS))[0]


LAYER: dict[str, Write] = {
    "rsqrt": lambda b, x, w, bias: layer(b, x, w, bias, root=False),
    "sqrt": lambda b, x, w, bias: layer(b, x, w, bias, root=True),
    "no bias": lambda b, x, w, bias: layer(b, x, w, None, root=True),
    "no weight": lambda b, x, w, bias: layer(b, x, None, bias, root=False),
    "neither": lambda b, x, w, bias: layer(b, x, None, None, root=False),
    "aten": lambda b, x, w, bias: b.call(aten.layer_norm.default, x, [x.meta["val"].shape[-1]], w, bias, EPS),
    "native": native,
}  # fmt: skip
