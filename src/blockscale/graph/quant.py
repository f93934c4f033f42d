"""Quantize, dequantize and fake-quantize nodes, whoever's operators they are.

    kind           operands (canonical order)             outputs
    quantize       x [scale zero_point tensor_scale]      by `Quant.outputs`, `codes` among them
    dequantize     codes scale [zero_point tensor_scale]  x
    fake_quantize  x [scale zero_point tensor_scale]      x
    choose_params  x                                      by `Quant.outputs`, no codes

`params["quant"]` is a Quant. A quantize without a scale operand is dynamic: it makes its scales.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from blockscale.errors import BlockscaleError
from blockscale.graph.args import Args
from blockscale.graph.dims import Alphabet, Dims, blocked
from blockscale.graph.view import Meta, Node
from blockscale.numerics.layout import Layout
from blockscale.numerics.scheme import Numbers

# say(layout) gives the arguments that change, so that the same operator has this layout; or why it cannot.
Say = Callable[[Layout, Dims], "dict[str, Any] | str"]


@dataclass(frozen=True)
class Foreign:
    """What it takes to say a foreign operator with ours.

    why        why that would change bits; empty: it keeps every bit
    scale      the scale that the arguments say, where there is no operand
    zero_only  bits are kept only where all zero points are 0
    pair       its codes mean something to its own dequantize alone: both are replaced, or neither is
    """

    why: str = ""
    scale: float | None = None
    zero_only: bool = False
    pair: bool = False


@dataclass(frozen=True)
class Quant:
    """What a quantizing node says.

    numbers   everything but the blocks. Of a foreign operator: as near as FORMATS come
    block     per dimension of the tensor with values (0: the whole dimension)
    packed    codes lie in bytes as in QuantizedTensor; otherwise one element a code
    scale     how the operator takes and gives scales: `full` rank, `scalar` (no dimensions, or one of 1),
              `channel` (one dimension, of the one that has several scales), `python` (arguments, no operand),
              `compact` (all scales in order in other dimensions, which the operator views as its own)
    outputs   what each output is: codes, scale, zero_point, tensor_scale
    say       None: the operator cannot be written with other blocks
    zero_point  the one that arguments say, where it is no operand; None: measured, not known
    identity  everything else that decides the result: attributes, dtypes (for combining); hashable
    foreign   None: it is one of our operators
    """

    numbers: Numbers
    block: tuple[int, ...]
    packed: bool = True
    scale: str = "full"
    outputs: tuple[str, ...] = ("codes",)
    say: Say | None = None
    zero_point: int | None = 0
    identity: tuple[Any, ...] = ()
    foreign: Foreign | None = None

    @property
    def exact(self) -> bool:
        """Whether ours in its place keep every bit, given parameters that ours take."""
        return self.foreign is None or not self.foreign.why

    def with_block(self, block: tuple[int, ...]) -> Quant:
        return replace(self, block=block)

    def __hash__(self) -> int:
        return hash((self.numbers, self.block, self.outputs, self.identity))

    def __eq__(self, other: object) -> bool:
        """By meaning: `say` is a function of the rest."""
        if not isinstance(other, Quant):
            return NotImplemented
        return self._key() == other._key()

    def _key(self) -> tuple[Any, ...]:
        return (
            self.numbers,
            self.block,
            self.packed,
            self.scale,
            self.outputs,
            self.zero_point,
            self.identity,
            self.foreign,
        )


# Of a quantizing node: kind, names of the arguments that are its canonical operands, Quant.
Read = tuple[str, tuple[str, ...], Quant]
Reader = Callable[[Args], Read]


def quant_of(node: Node) -> Quant:
    quant: Quant = node.params["quant"]
    return quant


def is_empty(quant: Quant, name: str, meta: Meta | None) -> bool:
    """Whether a zero point is none: ours give and take one of shape (0,) where the numbers have none."""
    return name == "zero_point" and not quant.numbers.zero_point and meta is not None and meta.shape == (0,)


def logical_meta(node: Node) -> Meta | None:
    """The tensor with values: the input of a quantize, the output of a dequantize."""
    if node.kind == "dequantize":
        return node.outputs[0].meta
    x = node.operand(0)
    return None if x is None else x.meta


def layout_of(node: Node, alphabet: Alphabet) -> Layout | str:
    """The layout of a quantizing node on stand-in sizes, or why there is none."""
    meta = logical_meta(node)
    if meta is None:
        return "its shape is not known"
    quant = quant_of(node)
    try:
        return _layout(quant.numbers, alphabet.numbers(meta.shape), quant.block)
    except BlockscaleError as error:
        return str(error)


def lost_in_codes(numbers: Numbers) -> str:
    """Why a quantize with a dequantize behind it would not give every bit of a fake-quantize."""
    row, element = numbers.dialect_row, numbers.element_format
    if numbers.why_no_codes:
        return numbers.why_no_codes
    if element.is_fixed and any(row.zero_signs(True, str(numbers.rounding))):
        return f"dialect {row.name!r} keeps the sign of zeros, and {numbers.element} has no code for -0"
    return ""


@lru_cache(maxsize=1 << 14)
def _layout(numbers: Numbers, shape: tuple[int, ...], block: tuple[int, ...]) -> Layout:
    """One for all equal ones: most layers of a model are alike, and what a layout must hold is checked once."""
    return Layout(numbers, shape, block)


def scale_dims(dims: Dims, block: tuple[int, ...]) -> Dims | str:
    """Full-rank shape of the scales."""
    return blocked(dims, block)


def codes_dims(dims: Dims, numbers: Numbers) -> Dims | str:
    """Shape of packed codes."""
    element = numbers.element_format
    if not element.packed or not dims:
        return dims
    last = dims[-1]
    if isinstance(last, int):
        return (*dims[:-1], -(-last * element.bits // 8))
    quotient = last.divided(8 // element.bits) if 8 % element.bits == 0 else None
    if quotient is None:
        return f"codes of {element.bits} bits are packed along {last}, which is known only at run time"
    return (*dims[:-1], quotient)


SCALE_DTYPES = {"e8m0": "uint8", "fp8_e4m3": "uint8", "f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def codes_dtype(numbers: Numbers) -> str:
    return str(numbers.element_format.storage_dtype)
