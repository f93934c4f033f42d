"""For each fused operator: operands, other arguments, and what it is on floats, as torch users write it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import blockscale.runtime.torch_fused  # noqa: F401  the operators exist
from blockscale.graph.fused import row_named
from blockscale.graph.fused_fields import FLOAT, Fields, arguments_of, fields_of
from blockscale.graph.torch_names import overload_named
from blockscale.numerics.layout import Layout, bind
from blockscale.numerics.scheme import scheme_named

ops = torch.ops.blockscale


def normal(*shape: int) -> Tensor:
    return torch.randn(shape)


@dataclass(frozen=True)
class Case:
    """shapes of the operands (None: absent); the other arguments by name; what it computes."""

    name: str
    shapes: Sequence[tuple[int, ...] | None]
    rest: dict[str, Any]
    floats: Callable[..., Any]

    def operands(self, dtype: torch.dtype = torch.float32) -> list[Tensor | None]:
        return [None if shape is None else torch.randn(shape).to(dtype) for shape in self.shapes]


def rms(x: Tensor, eps: float) -> Tensor:
    x = x.to(torch.float32)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def llama(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * rms(x, eps).to(x.dtype)


def weight_first(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return (rms(x, eps) * weight.float()).to(x.dtype)


def gemma(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return (rms(x, eps) * (1.0 + weight.float())).type_as(x)


def spelled_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, root: bool) -> Tensor:
    wide = x.float()
    wide = wide - wide.mean(-1, keepdim=True)
    variance = (wide**2).mean(-1, keepdim=True) + eps
    wide = wide / torch.sqrt(variance) if root else wide * torch.rsqrt(variance)
    return wide.to(x.dtype) * weight + bias


def _conv(n: int) -> list[Case]:
    size, function, transposed = (7, 6, 5)[:n], getattr(F, f"conv{n}d"), getattr(F, f"conv_transpose{n}d")
    x, kernel = (2, 6, *size), (3, 5, 1)[:n]
    general = {
        "stride": [2] * n, "padding": [1] * n, "dilation": [1] * n, "transposed": False,
        "output_padding": [0] * n, "groups": 2,
    }  # fmt: skip
    return [
        Case(f"conv{n}d", (x, (8, 6, *kernel), (8,)), {}, function),
        Case(f"conv{n}d", (x, (8, 3, *kernel), None), {"stride": [2] * n, "padding": [1] * n, "groups": 2},
             lambda x, w, b: function(x, w, b, 2, 1, 1, 2)),
        Case(f"conv{n}d.padding", (x, (8, 6, *kernel), (8,)), {"padding": "same"},
             lambda x, w, b: function(x, w, b, padding="same")),
        Case(f"conv_transpose{n}d", (x, (6, 4, *kernel), (4,)),
             {"stride": [2] * n, "output_padding": [1] * n}, lambda x, w, b: transposed(x, w, b, 2, 0, 1)),
        Case("convolution", (x, (8, 3, *kernel), (8,)), general,
             lambda x, w, b: function(x, w, b, 2, 1, 1, 2)),
    ]  # fmt: skip


_NORM = {"normalized_shape": [40], "eps": 1e-6}
_NORMED = ((3, 5, 40), (40,))


def _norms(name: str, residual: bool, forms: dict[str, Callable[..., Tensor]]) -> list[Case]:
    found = []
    for form, function in forms.items():
        shapes = [_NORMED[0], *(_NORMED[1],) * (2 if "layer" in name else 1)]
        floats = function
        if residual:
            shapes.insert(1, _NORMED[0])
            floats = lambda x, r, *rest, f=function: (f(x + r, *rest), x + r)  # noqa: E731
        found.append(Case(name, shapes, {**_NORM, "form": form}, floats))
    return found


RMS_FORMS: dict[str, Callable[..., Tensor]] = {
    "aten": lambda x, w: F.rms_norm(x, [40], w, 1e-6),
    "weight_last": lambda x, w: llama(x, w, 1e-6),
    "weight_first": lambda x, w: weight_first(x, w, 1e-6),
    "one_plus_weight": lambda x, w: gemma(x, w, 1e-6),
}
LAYER_FORMS: dict[str, Callable[..., Tensor]] = {
    "aten": lambda x, w, b: F.layer_norm(x, [40], w, b, 1e-6),
    "rsqrt": lambda x, w, b: spelled_layer_norm(x, w, b, 1e-6, False),
    "sqrt": lambda x, w, b: spelled_layer_norm(x, w, b, 1e-6, True),
}
_X = (3, 5, 40)
_HEADS = (2, 4, 5, 16)
_MASK = torch.ones(5, 5, dtype=torch.bool).tril()

CASES: list[Case] = [
    Case("linear", (_X, (8, 40), (8,)), {}, F.linear),
    Case("linear", (_X, (8, 40), None), {}, F.linear),
    Case("matmul", (_X, (3, 40, 6)), {}, torch.matmul),
    Case("matmul", ((4, 40), (40, 6)), {}, torch.matmul),
    Case("mm", ((4, 40), (40, 6)), {}, torch.mm),
    Case("bmm", ((3, 4, 40), (3, 40, 6)), {}, torch.bmm),
    Case("addmm", ((4, 40), (40, 6), (6,)), {}, lambda x, y, b: torch.addmm(b, x, y)),
    Case("baddbmm", ((3, 4, 40), (3, 40, 6), (3, 4, 6)), {"alpha": 2},
         lambda x, y, b: torch.baddbmm(b, x, y, alpha=2)),
    *(case for n in (1, 2, 3) for case in _conv(n)),
    Case("sdpa", (_HEADS, _HEADS, _HEADS), {"is_causal": True},
         lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
    Case("sdpa", (_HEADS, (2, 2, 5, 16), (2, 2, 5, 16)), {"attn_mask": _MASK, "enable_gqa": True, "scale": 0.3},
         lambda q, k, v: F.scaled_dot_product_attention(q, k, v, _MASK, scale=0.3, enable_gqa=True)),
    Case("embedding", ((9, 40),), {"indices": torch.tensor([[0, 8], [3, 3]])},
         lambda w: F.embedding(torch.tensor([[0, 8], [3, 3]]), w)),
    Case("add", (_X, (5, 40)), {}, torch.add),
    Case("add", (_X, _X), {"alpha": 3}, lambda x, y: torch.add(x, y, alpha=3)),
    Case("add.Scalar", (_X,), {"other": 1.3}, lambda x: x + 1.3),
    Case("sub", (_X, (1,)), {}, torch.sub),
    Case("sub.Scalar", (_X,), {"other": 1.3}, lambda x: x - 1.3),
    Case("mul", (_X, (40,)), {}, torch.mul),
    Case("mul.Scalar", (_X,), {"other": -0.7}, lambda x: x * -0.7),
    Case("relu", (_X,), {}, F.relu),
    Case("silu", (_X,), {}, F.silu),
    Case("sigmoid", (_X,), {}, torch.sigmoid),
    Case("tanh", (_X,), {}, torch.tanh),
    Case("hardswish", (_X,), {}, F.hardswish),
    Case("hardsigmoid", (_X,), {}, F.hardsigmoid),
    Case("gelu", (_X,), {"approximate": "tanh"}, lambda x: F.gelu(x, approximate="tanh")),
    Case("softmax", (_X,), {"dim": -1}, lambda x: torch.softmax(x, -1)),
    Case("mean", (_X,), {"dim": [1], "keepdim": True}, lambda x: x.mean(1, keepdim=True)),
    Case("avg_pool2d", ((2, 3, 8, 8),), {"kernel_size": [2, 2]}, lambda x: F.avg_pool2d(x, 2)),
    Case("max_pool2d", ((2, 3, 8, 8),), {"kernel_size": [3, 3], "stride": [2, 2]},
         lambda x: F.max_pool2d(x, 3, 2)),
    *_norms("rms_norm", False, RMS_FORMS),
    *_norms("rms_norm_quantize", False, RMS_FORMS),
    *_norms("add_rms_norm_quantize", True, RMS_FORMS),
    *_norms("layer_norm", False, LAYER_FORMS),
    *_norms("layer_norm_quantize", False, LAYER_FORMS),
    *_norms("add_layer_norm_quantize", True, LAYER_FORMS),
    Case("rms_norm_quantize", (_X, None), {"normalized_shape": [40], "eps": 1e-5, "form": "weight_first"},
         lambda x, w: rms(x, 1e-5).to(x.dtype)),
    Case("layer_norm_quantize", (_X, None, None), {"normalized_shape": [5, 40]},
         lambda x, w, b: F.layer_norm(x, [5, 40])),
    Case("requantize", (_X,), {}, lambda x: x),
]  # fmt: skip


# ------------------------------------------------------------------------- operands as codes


@dataclass(frozen=True)
class Quantized:
    """A tensor as an operand: what the operator is given, and the floats that it stands for."""

    given: Tensor | None
    fields: Fields
    floats: Tensor | None


def as_is(x: Tensor | None) -> Quantized:
    return Quantized(x, FLOAT, x)


def layout_for(name: str, shape: Sequence[int]) -> Layout:
    return bind(scheme_named(name), shape)


def place_of(layout: Layout) -> tuple[str, tuple[int, ...]]:
    return str(layout.numbers), layout.block


def as_codes(x: Tensor, name: str) -> Quantized:
    layout = layout_for(name, x.shape)
    codes, scale, zeros, t = ops.dynamic_quantize(x, *place_of(layout))
    floats = ops.dequantize(codes, scale, zeros, t, place_of(layout)[0], x.shape, layout.block, dtype=x.dtype)
    return Quantized(codes, fields_of(layout, scale, zeros, t), floats)


def as_dynamic(x: Tensor, name: str) -> Quantized:
    layout = layout_for(name, x.shape)
    return Quantized(x, fields_of(layout), ops.fake_quantize(x, *place_of(layout)))


def call(
    name: str, operands: Sequence[Quantized], rest: dict[str, Any], out: Fields = FLOAT,
    compute: torch.dtype | None = None,
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:  # fmt: skip
    """The operator and its arguments; dynamic where the output has a dtype and no scale."""
    row = row_named(name)
    args, settings = arguments_of(
        row, [one.given for one in operands], [one.fields for one in operands], out, compute
    )
    rest = {k: v for k, v in rest.items() if k in (*row.rest_names, *row.rest_tensors)}
    return overload_named(row.operator(dynamic=out.kind == "dynamic")), args, settings | rest
