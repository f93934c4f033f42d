"""The table of fused operators: operators of ATen whose operands and output may be quantized.

    name(operands…, five fields of each operand…, five fields of the output, rest of ATen's arguments…,
         *, x_block, x_last of each operand x…, out_block, compute)

The five fields are (scale, zero_point, dtype, quant_min, quant_max); `fused_fields` says what they mean. What
an operator computes is a row of ATen, or a composition of `fused_forms`.

`name` returns a tensor: floats where the output's fields are those of a float edge, else codes.
`name.dynamic` (`add.Scalar_dynamic` of `add.Scalar`) takes the same; its output has a dtype, a block and no
scale, and it returns what dynamic_quantize returns: codes, scale, zero_point, tensor_scale. Operators that
also return floats (`sum`) return them after that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from blockscale.errors import UnknownNameError
from blockscale.graph.ops import Op
from blockscale.numerics.scheme import Numbers

OUT = "out"
RESULTS = ("codes", "scale", "zero_point", "tensor_scale")  # of a dynamic output
NAMESPACE = "blockscale"
PREFIX = "fused."  # of the kinds of the view: "fused.linear"


@dataclass(frozen=True)
class Operand:
    """`name` is ours, `aten` what the operator of ATen or the composition calls it."""

    name: str
    aten: str
    optional: bool


@dataclass(frozen=True)
class Fused:
    """One fused operator.

    aten     the operator that it is on floats; "" for a composition of fused_forms
    spelled  its operands: `x=self` where ATen has another name, `bias?` if it may be None
    rest     its other arguments, as a schema says them
    output   what its output may be
    also     further results, floats
    same     operators of ATen that compute the same bits of arguments of the same names
    ignored  arguments of those that change no value of the forward pass
    """

    name: str
    aten: str
    spelled: str
    rest: str = ""
    output: Literal["any", "float", "codes"] = "any"
    also: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        found = []
        for word in self.spelled.split():
            name, _, other = word.removesuffix("?").partition("=")
            found.append(Operand(name, other or name, word.endswith("?")))
        return tuple(found)

    @cached_property
    def rest_names(self) -> tuple[str, ...]:
        """Without those that are tensors."""
        return tuple(name for kind, name in self._rest if not kind.startswith("Tensor"))

    @cached_property
    def rest_tensors(self) -> tuple[str, ...]:
        return tuple(name for kind, name in self._rest if kind.startswith("Tensor"))

    @cached_property
    def needed(self) -> frozenset[str]:
        """Tensors that must be there, as ATen calls them."""
        rest = {name for kind, name in self._rest if kind == "Tensor"}
        return frozenset(rest | {one.aten for one in self.operands if not one.optional})

    @cached_property
    def _rest(self) -> tuple[tuple[str, str], ...]:
        arguments = [a.strip().partition("=")[0].split() for a in self.rest.split(",") if a.strip()]
        return tuple((words[0], words[-1]) for words in arguments)

    @property
    def kind(self) -> str:
        """In the view."""
        return PREFIX + self.name

    def operator(self, *, dynamic: bool = False) -> str:
        """Its qualified name; `dynamic` where the scale of the output is chosen in the operator."""
        name, _, overload = self.name.partition(".")
        overload = "_".join(filter(None, [overload, "dynamic" * dynamic])) or "default"
        return f"{NAMESPACE}.{name}.{overload}"

    @property
    def overloads(self) -> tuple[bool, ...]:
        """Whether its output is dynamic, for each operator that the row has."""
        return (False,) if self.output == "float" else (False, True)

    @cached_property
    def view_operands(self) -> str:
        """Arguments that are tensors, in the order in which the view has them as operands."""
        names = [one.name for one in self.operands]
        fields = [f"{name}_{field}" for name in (*names, OUT) for field in ("scale", "zero_point")]
        return " ".join([*names, *self.rest_tensors, *fields])


_SHAPE = "SymInt[] normalized_shape"
_RMS = f"{_SHAPE}, float? eps=None, str form='aten'"
_LAYER = f"{_SHAPE}, float eps=1e-05, str form='aten'"
_POOL = "int[2] kernel_size, int[2] stride=[], int[2] padding=0"
_CONV = "SymInt[{0}] stride=1, {1} padding={2}, SymInt[{0}] dilation=1, SymInt groups=1"
_TRANSPOSED = (
    "SymInt[{0}] stride=1, SymInt[{0}] padding=0, SymInt[{0}] output_padding=0, SymInt groups=1, "
    "SymInt[{0}] dilation=1"
)
_WEIGHTED = "x=input weight bias?"


def _convolutions() -> tuple[Fused, ...]:
    made = []
    for n, transposed in ((1, "default"), (2, "input"), (3, "input")):
        sizes = _CONV.format(n, f"SymInt[{n}]", 0)
        made += [
            Fused(f"conv{n}d", f"aten.conv{n}d.default", _WEIGHTED, sizes),
            Fused(
                f"conv{n}d.padding", f"aten.conv{n}d.padding", _WEIGHTED, _CONV.format(n, "str", "'valid'")
            ),
            Fused(
                f"conv_transpose{n}d",
                f"aten.conv_transpose{n}d.{transposed}",
                _WEIGHTED,
                _TRANSPOSED.format(n),
            ),
        ]
    return tuple(made)


def _elementwise(*names: str) -> tuple[Fused, ...]:
    return tuple(Fused(name, f"aten.{name}.default", "x=self") for name in names)


ROWS = (
    Fused("linear", "aten.linear.default", _WEIGHTED),
    Fused("matmul", "aten.matmul.default", "x=self y=other"),
    Fused("mm", "aten.mm.default", "x=self y=mat2"),
    Fused("bmm", "aten.bmm.default", "x=self y=mat2"),
    Fused("addmm", "aten.addmm.default", "x=mat1 y=mat2 bias=self", "Scalar beta=1, Scalar alpha=1"),
    Fused("baddbmm", "aten.baddbmm.default", "x=batch1 y=batch2 bias=self", "Scalar beta=1, Scalar alpha=1"),
    *_convolutions(),
    Fused("convolution", "aten.convolution.default", _WEIGHTED,
          "SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, "
          "SymInt groups"),
    Fused("sdpa", "aten.scaled_dot_product_attention.default", "query key value",
          "Tensor? attn_mask=None, float dropout_p=0.0, bool is_causal=False, float? scale=None, "
          "bool enable_gqa=False"),
    Fused("embedding", "aten.embedding.default", "weight", "Tensor indices, SymInt padding_idx=-1",
          ignored=("scale_grad_by_freq", "sparse")),
    Fused("add", "aten.add.Tensor", "x=self y=other", "Scalar alpha=1"),
    Fused("add.Scalar", "aten.add.Scalar", "x=self", "Scalar other, Scalar alpha=1",
          same=("aten.add.Tensor",)),
    Fused("sub", "aten.sub.Tensor", "x=self y=other", "Scalar alpha=1"),
    Fused("sub.Scalar", "aten.sub.Scalar", "x=self", "Scalar other, Scalar alpha=1",
          same=("aten.sub.Tensor",)),
    Fused("mul", "aten.mul.Tensor", "x=self y=other"),
    Fused("mul.Scalar", "aten.mul.Scalar", "x=self", "Scalar other", same=("aten.mul.Tensor",)),
    *_elementwise("relu", "silu", "sigmoid", "tanh", "hardswish", "hardsigmoid"),
    Fused("gelu", "aten.gelu.default", "x=self", "str approximate='none'"),
    Fused("softmax", "aten.softmax.int", "x=self", "int dim"),
    Fused("mean", "aten.mean.dim", "x=self", "int[1]? dim, bool keepdim=False"),
    Fused("avg_pool2d", "aten.avg_pool2d.default", "x=self",
          f"{_POOL}, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None"),
    Fused("max_pool2d", "aten.max_pool2d.default", "x=self",
          f"{_POOL}, int[2] dilation=1, bool ceil_mode=False"),
    Fused("rms_norm", "aten.rms_norm.default", "x=input weight?", _RMS, "float"),
    Fused("layer_norm", "aten.layer_norm.default", "x=input weight? bias?", _LAYER, "float",
          same=("aten.native_layer_norm.default",), ignored=("cudnn_enable",)),
    Fused("rms_norm_quantize", "aten.rms_norm.default", "x=input weight?", _RMS, "codes"),
    Fused("layer_norm_quantize", "aten.layer_norm.default", "x=input weight? bias?", _LAYER, "codes",
          same=("aten.native_layer_norm.default",), ignored=("cudnn_enable",)),
    Fused("add_rms_norm_quantize", "", "x=input residual weight?", _RMS, "codes", ("sum",)),
    Fused("add_layer_norm_quantize", "", "x=input residual weight? bias?", _LAYER, "codes", ("sum",)),
    Fused("requantize", "", "x", output="codes"),
)  # fmt: skip

ROW_OF: dict[str, Fused] = {row.name: row for row in ROWS}
FUSED_OPS: dict[str, Op] = {
    row.operator(dynamic=dynamic): Op(row.kind, {row.operator(dynamic=dynamic): row.view_operands}, {})
    for row in ROWS for dynamic in row.overloads
}  # fmt: skip


def _by_aten() -> dict[str, tuple[Fused, ...]]:
    found: dict[str, tuple[Fused, ...]] = {}
    for row in ROWS:
        for name in filter(None, (row.aten, *row.same)):
            found[name] = (*found.get(name, ()), row)
    return found


ROWS_OF_ATEN = _by_aten()


def row_named(name: str) -> Fused:
    """The row of an operator's name, or of a kind of the view."""
    row = ROW_OF.get(name.removeprefix(PREFIX))
    if row is None:
        raise UnknownNameError("fused operator", name, ROW_OF)
    return row


def fused_name(name: str, *, dynamic: bool = False) -> str | None:
    """The qualified name of the operator that `name` has, or None: "blockscale.linear.default"."""
    row = ROW_OF.get(name)
    return None if row is None else row.operator(dynamic=dynamic)


def takes(
    name: str, operand: int | str, numbers: Numbers | None, *, dynamic: bool = False
) -> Literal[True] | str:
    """Whether an operand (by index or name, `OUT` for the output) may have these numbers, or why not.

    None stands for floats. dynamic: the operator chooses the scale. Any block will do.
    """
    row = ROW_OF.get(name)
    if row is None:
        return f"{name} has no fused operator"
    names = [one.name for one in row.operands]
    if operand != OUT and operand not in names and operand not in range(len(names)):
        return f"{name} has no operand {operand}: its operands are {', '.join(names)} and {OUT}"
    if operand == OUT and row.output != "any" and (numbers is None) != (row.output == "float"):
        return f"{name} gives {'floats' if row.output == 'float' else 'quantized output'} only"
    if numbers is None:
        return True
    if numbers.why_no_codes and (operand == OUT or not dynamic):
        return numbers.why_no_codes
    if numbers.rounding == "stochastic" and (operand == OUT or dynamic):
        return "stochastic rounding has a seed, which fused operators do not take"
    return True
