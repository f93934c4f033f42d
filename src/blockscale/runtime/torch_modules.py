"""nn.Linear and nn.Embedding whose weights are codes: what takes their place in a module that stays a module.

They hold codes and scales as buffers, a bias as a parameter, and call torch.ops.blockscale.linear and embedding;
so they compile, are exported, copied, pickled and saved as any module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.errors import CombinationError
from blockscale.graph.fused_fields import Fields, fields_of
from blockscale.numerics.layout import Layout, bind
from blockscale.numerics.native import Stored
from blockscale.numerics.scheme import Scheme
from blockscale.runtime import torch_fused  # noqa: F401  the operators exist

__all__ = ["Input", "QuantizedEmbedding", "QuantizedLinear", "Weight", "quantized_weight"]

_operators = torch.ops.blockscale


@dataclass(frozen=True)
class Weight:
    """A matrix as codes; `slot` is the zero point, or the tensor scale of NVFP4."""

    layout: Layout
    codes: Tensor
    scale: Tensor
    slot: Tensor | None


def quantized_weight(weight: Tensor, scheme: Scheme) -> Weight:
    layout = bind(scheme, tuple(weight.shape))
    with torch.no_grad(), torch.inference_mode(False):
        found = _operators.dynamic_quantize.default(
            weight.detach().clone(), str(layout.numbers), layout.block
        )
        codes, scale, zeros, tensor_scale = found
    fields = fields_of(layout, scale, zeros, tensor_scale)
    return Weight(layout, codes, scale, fields.zero_point)


@dataclass(frozen=True)
class Input:
    """How x [..., K] is quantized: `lead` is the block of every dimension but the last, 1 or 0.

    static  parameters from calibration; of NVFP4 the tensor scale alone. None: all is found from x
    """

    scheme: Scheme
    length: int
    static: Stored | None = None

    @property
    def layout(self) -> Layout:
        return bind(self.scheme, (2, self.length))

    def check(self, name: str) -> None:
        shared = self.layout.block == (0, 0)
        if self.layout.block[0] not in (0, 1) or (self.static is not None and not shared):
            raise CombinationError(
                f"input of {name!r} in blocks of {self.layout.block}: rows must be on their own, or all share one "
                "scale, as static ones do; give example_inputs, and the graph takes any"
            )


class _OfCodes(nn.Module):
    """A module with a weight of codes, which `to`, `half` and the like leave in its numbers."""

    weight_codes: Tensor
    weight_scale: Tensor
    weight_slot: Tensor | None

    def __init__(self, weight: Weight, dtype: torch.dtype) -> None:
        super().__init__()
        self.layout = weight.layout
        self.dtype = dtype
        self.register_buffer("weight_codes", weight.codes)
        self.register_buffer("weight_scale", weight.scale)
        self.register_buffer("weight_slot", weight.slot)
        fields = fields_of(weight.layout, weight.scale, weight.slot, weight.slot)
        self._weight_dtype, self._weight_range = fields.dtype, (fields.quant_min, fields.quant_max)
        self._weight_open = {"weight_block": _listed(fields.block), "weight_last": fields.last}
        self.training = False

    @property
    def weight(self) -> Tensor:
        """Its values, decoded: for who looks at it. Writing to them changes nothing."""
        numbers, slot = self.layout.numbers, self.weight_slot
        zero_point, tensor_scale = (None, slot) if numbers.tensor_scale else (slot, None)
        return _operators.dequantize.default(  # type: ignore[no-any-return]
            self.weight_codes, self.weight_scale, zero_point, tensor_scale, str(numbers), self.layout.shape,
            self.layout.block, dtype=self.dtype,
        )  # fmt: skip

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _OfCodes:
        scales = {
            name: one for name, one in self._buffers.items() if one is not None and one.is_floating_point()
        }
        self.dtype = fn(torch.zeros((), dtype=self.dtype, device=self.weight_codes.device)).dtype
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, before in scales.items():
            now = self._buffers[name]
            assert now is not None
            if now.dtype is not before.dtype:
                self._buffers[name] = before.to(now.device)
        return self

    def train(self, mode: bool = True) -> _OfCodes:
        return super().train(False)  # a part of what trains, perhaps, but codes do not


class QuantizedLinear(_OfCodes):
    """y = x · Wᵀ + bias, W as codes; x as it is, or quantized as `input` says."""

    input_scale: Tensor | None
    input_slot: Tensor | None

    def __init__(
        self, weight: Weight, bias: Tensor | None, input: Input | None, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(weight, dtype)
        self.out_features, self.in_features = weight.layout.shape
        kept = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)
        self.register_parameter("bias", kept)
        self.input = None if input is None else input.scheme
        fields, scale, slot = Fields(), None, None
        self._lead, self._last = 1, 1
        if input is not None:
            self._lead, self._last = input.layout.block
            fields = fields_of(bind(_dynamic(input.scheme), (2, input.length)))
            if input.static is not None:
                scale, slot = _tensors(input.static)
                if scale is not None:
                    fields = fields_of(input.layout, scale, slot, slot)
        self.register_buffer("input_scale", scale)
        self.register_buffer("input_slot", slot)
        self._input_dtype, self._input_range = fields.dtype, (fields.quant_min, fields.quant_max)

    def forward(self, x: Tensor) -> Tensor:
        dtype, block, scale, slot = x.dtype, None, self.input_scale, self.input_slot
        if self.input is not None:
            block = [*(self._lead,) * (x.dim() - 1), self._last]
            if scale is not None:  # one for all of x
                scale = scale.reshape((1,) * x.dim())
                slot = None if slot is None else slot.reshape((1,) * x.dim())
                x = _operators.quantize.default(x, str(self.input.numbers), block, scale, slot)
        return _operators.linear.default(  # type: ignore[no-any-return]
            x, self.weight_codes, self.bias, scale, slot, self._input_dtype, *self._input_range,
            self.weight_scale, self.weight_slot, self._weight_dtype, *self._weight_range,
            None, None, "", None, None, None, None, "", None, None, x_block=block, **self._weight_open,
            compute=dtype,
        )  # fmt: skip

    def extra_repr(self) -> str:
        given = f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"
        return f"{given}, weight={self.layout.numbers}, input={self.input or 'float'}"


class QuantizedEmbedding(_OfCodes):
    """Rows of a matrix of codes; only those that are asked for are decoded."""

    def __init__(self, weight: Weight, padding_idx: int | None, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(weight, dtype)
        self.num_embeddings, self.embedding_dim = weight.layout.shape
        self.padding_idx = padding_idx

    def forward(self, input: Tensor) -> Tensor:
        return _operators.embedding.default(  # type: ignore[no-any-return]
            self.weight_codes, self.weight_scale, self.weight_slot, self._weight_dtype, *self._weight_range,
            None, None, "", None, None, input, **self._weight_open, compute=self.dtype,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, weight={self.layout.numbers}"


def _dynamic(scheme: Scheme) -> Scheme:
    return scheme if scheme.dynamic else replace(scheme, dynamic=True)


def _tensors(static: Stored) -> tuple[Tensor | None, Tensor | None]:
    """Scale, and zero point or tensor scale."""
    if static.scales is None:
        return None, torch.as_tensor(static.tensor_scale)
    zero_point = None if static.zero_points is None else torch.as_tensor(static.zero_points)
    return torch.as_tensor(static.scales), zero_point


def _listed(block: Any) -> list[int] | None:
    return None if block is None else list(block)
