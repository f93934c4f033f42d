"""The table of fused operators, and their schemas, which follow from it.

    name(operands…, five fields of each operand…, five fields of the output, rest of ATen's arguments…,
         *, x_block, x_last of each operand x…, out_block, compute)

`name` returns a tensor: float where the output's fields are those of a float edge, else codes.
`name.dynamic` (`add.Scalar_dynamic` of `add.Scalar`) takes the same; its output has a dtype, a block and no
scale, and it returns (codes, scale, zero_point), the last as a field: of shape (0,) for none, and the tensor
scale for NVFP4. Operators that also return floats (`sum`) return them after that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

OUT = "out"
_FIVE = "Tensor? {0}_scale, Tensor? {0}_zero_point, str {0}_dtype, int? {0}_quant_min, int? {0}_quant_max"


@dataclass(frozen=True)
class Operand:
    name: str
    aten: str  # what the function calls it
    optional: bool


@dataclass(frozen=True)
class Row:
    """One fused operator; `function` is called with keywords only."""

    name: str
    function: Callable[..., Any]
    spelled: str  # operands, `x=self` where the function has another name for it, `bias?` if it may be None
    rest: str = ""
    quantizes: bool = False  # its output is never a float edge
    also: tuple[str, ...] = ()  # further results of the function, floats

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        found = []
        for word in self.spelled.split():
            name, _, other = word.removesuffix("?").partition("=")
            found.append(Operand(name, other or name, word.endswith("?")))
        return tuple(found)

    @property
    def dynamic_name(self) -> str:
        return f"{self.name}_dynamic" if "." in self.name else f"{self.name}.dynamic"

    def schema(self, *, dynamic: bool) -> str:
        operands = [f"Tensor{'?' * one.optional} {one.name}" for one in self.operands]
        fields = [_FIVE.format(name) for name in (*(one.name for one in self.operands), OUT)]
        open_ = [f"SymInt[]? {one.name}_block=None, SymInt? {one.name}_last=None" for one in self.operands]
        settings = [*open_, f"SymInt[]? {OUT}_block=None", "ScalarType? compute=None"]
        arguments = [*operands, *fields, *filter(None, [self.rest]), "*", *settings]
        results = ["codes", "scale", "zero_point"] if dynamic else [OUT]
        returned = ", ".join(f"Tensor {name}" for name in (*results, *self.also))
        returned = f"({returned})" if len(results) + len(self.also) > 1 else "Tensor"
        name = self.dynamic_name if dynamic else self.name
        return f"{name}({', '.join(arguments)}) -> {returned}"


def _identity(x: Tensor) -> Tensor:
    return x


def _rms_norm(
    x: Tensor, weight: Tensor | None, normalized_shape: list[int], eps: float | None, weight_last: bool
) -> Tensor:
    """weight_last: the normalized x is rounded to its dtype before the weight multiplies it, as in
    transformers; ATen multiplies in float32."""
    if not weight_last or weight is None:
        return aten.rms_norm.default(x, normalized_shape, weight, eps)  # type: ignore[no-any-return]
    return weight * aten.rms_norm.default(x, normalized_shape, None, eps)  # type: ignore[no-any-return]


def _add_rms_norm(x: Tensor, residual: Tensor, **rest: Any) -> tuple[Tensor, Tensor]:
    total = x + residual
    return _rms_norm(total, **rest), total


def _add_layer_norm(x: Tensor, residual: Tensor, **rest: Any) -> tuple[Tensor, Tensor]:
    total = x + residual
    return aten.layer_norm.default(total, **rest), total


_SHAPE = "SymInt[] normalized_shape"
_RMS = f"{_SHAPE}, float? eps=None"
_LAYER = f"{_SHAPE}, float eps=1e-05"
_POOL = "int[2] kernel_size, int[2] stride=[], int[2] padding=0"

ROWS = (
    Row("linear", aten.linear.default, "x=input weight bias?"),
    Row("matmul", aten.matmul.default, "x=self y=other"),
    Row("bmm", aten.bmm.default, "x=self y=mat2"),
    Row("conv", aten.convolution.default, "x=input weight bias?",
        "SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, "
        "SymInt groups"),
    Row("embedding", aten.embedding.default, "weight", "Tensor indices, SymInt padding_idx=-1"),
    Row("add", aten.add.Tensor, "x=self y=other", "Scalar alpha=1"),
    Row("add.Scalar", aten.add.Scalar, "x=self", "Scalar other, Scalar alpha=1"),
    Row("sub", aten.sub.Tensor, "x=self y=other", "Scalar alpha=1"),
    Row("sub.Scalar", aten.sub.Scalar, "x=self", "Scalar other, Scalar alpha=1"),
    Row("mul", aten.mul.Tensor, "x=self y=other"),
    Row("mul.Scalar", aten.mul.Scalar, "x=self", "Scalar other"),
    Row("relu", aten.relu.default, "x=self"),
    Row("gelu", aten.gelu.default, "x=self", "str approximate='none'"),
    Row("silu", aten.silu.default, "x=self"),
    Row("sigmoid", aten.sigmoid.default, "x=self"),
    Row("tanh", aten.tanh.default, "x=self"),
    Row("hardswish", aten.hardswish.default, "x=self"),
    Row("hardsigmoid", aten.hardsigmoid.default, "x=self"),
    Row("softmax", aten.softmax.int, "x=self", "int dim"),
    Row("rms_norm", aten.rms_norm.default, "x=input weight?", _RMS),
    Row("layer_norm", aten.layer_norm.default, "x=input weight? bias?", _LAYER),
    Row("avg_pool2d", aten.avg_pool2d.default, "x=self",
        f"{_POOL}, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None"),
    Row("max_pool2d", aten.max_pool2d.default, "x=self", f"{_POOL}, int[2] dilation=1, bool ceil_mode=False"),
    Row("mean", aten.mean.dim, "x=self", "int[1]? dim, bool keepdim=False"),
    Row("requantize", _identity, "x", quantizes=True),
    Row("rms_norm_quantize", _rms_norm, "x weight?", f"{_RMS}, bool weight_last=False", quantizes=True),
    Row("layer_norm_quantize", aten.layer_norm.default, "x=input weight? bias?", _LAYER, quantizes=True),
    Row("add_rms_norm_quantize", _add_rms_norm, "x residual weight?", f"{_RMS}, bool weight_last=False",
        quantizes=True, also=("sum",)),
    Row("add_layer_norm_quantize", _add_layer_norm, "x residual weight? bias?", _LAYER, quantizes=True,
        also=("sum",)),
)  # fmt: skip

ROW_OF = {row.name: row for row in ROWS}
