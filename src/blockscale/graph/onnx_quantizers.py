"""Operators of ONNX models that quantize → their kind, operands and Quant; as `quantizers` for FX.

Ours, domain `blockscale` version 1; the attributes are the arguments of torch.ops.blockscale.*:

    FakeQuantize(x, scale?, zero_point?, tensor_scale?) → y                      numbers, block, seed
    Quantize(x, scale, zero_point?, tensor_scale?) → codes                       numbers, block, seed
    DynamicQuantize(x, tensor_scale?) → codes, scale, zero_point?, tensor_scale?  numbers, block, seed
    Dequantize(codes, scale, zero_point?, tensor_scale?) → y                     numbers, block, shape, dtype
    MatMul(x, codes, scale, zero_point?, tensor_scale?, bias?) → y               numbers, block, shape, trans_b,
                                                                                 x_numbers, x_block

`shape` is that of y; -1 stands for the size that the codes have, times their number a byte in the last
dimension where they are packed. `dtype` is a number of onnx.TensorProto.DataType, 1 (float32) if not given.
A tensor of shape (0,) stands for one that is left out.

MatMul is x · W + bias, in float32 and of the dtype of x. W has two dimensions, [K, N], or [N, K] with
trans_b = 1; numbers, block and shape are those of W as it is stored. x is quantized first and dequantized at
once if there are x_numbers, in blocks of x_block along its last dimension (0: the whole row).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from blockscale.errors import BlockscaleError
from blockscale.graph.args import Args, Unreadable
from blockscale.graph.dims import Dims
from blockscale.graph.quant import Foreign, Quant, Read, Reader, Say
from blockscale.graph.quantizers import ours
from blockscale.graph.quantizers_affine import per_channel, say_channel, say_whole, whole
from blockscale.numerics.formats import BFP_ELEMENTS, MX_ELEMENTS
from blockscale.numerics.layout import Layout
from blockscale.numerics.scheme import Numbers, numbers_named

DOMAIN = "blockscale"

# ------------------------------------------------------------------------------------------- ours

_PARAMS = ("scale", "zero_point", "tensor_scale")


def _ours(a: Args, **fields: Any) -> Quant:
    return ours(numbers_named(a.get("numbers")), a.ints("block"), a.int("seed", 0), **fields)


def _fake_quantize(a: Args) -> Read:
    return "fake_quantize", ("x", *_PARAMS), _ours(a)


def _quantize(a: Args) -> Read:
    return "quantize", ("x", *_PARAMS), _ours(a)


def _dynamic_quantize(a: Args) -> Read:
    outputs = ("codes", "scale", "zero_point", "tensor_scale")
    zero_point = None if numbers_named(a.get("numbers")).zero_point else 0
    return "quantize", ("x", *_PARAMS), _ours(a, outputs=outputs, zero_point=zero_point)


def _dequantize(a: Args) -> Read:
    numbers = numbers_named(a.get("numbers"))
    quant = Quant(numbers, a.ints("block"), say=_say_shape, identity=(a.out().dtype,))
    return "dequantize", ("codes", *_PARAMS), quant


def _say_shape(layout: Layout, dims: Dims) -> dict[str, Any]:
    return {"block": list(layout.block), "shape": dims}


# ------------------------------------------------------------------------------------------- standard

_ELEMENTS = {
    "int2": "int2", "uint2": "uint2", "int4": "int4", "uint4": "uint4", "int8": "int8", "uint8": "uint8",
    "int16": "int16", "uint16": "uint16", "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2",
    "float4_e2m1fn": "fp4_e2m1", "float6_e2m3fn": "fp6_e2m3", "float6_e3m2fn": "fp6_e3m2",
}  # fmt: skip
_SCALES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float8_e8m0fnu": "e8m0"}
_LARGEST_SCALE = 2.0**111  # times any difference of two 16-bit codes it is finite in float32


@lru_cache(maxsize=4096)
def _numbers(dtype: str, scale: str, zero_point: bool) -> Numbers:
    element = _ELEMENTS.get(dtype)
    if element is None:
        raise Unreadable(f"codes of {dtype} are of no format")
    if scale not in _SCALES:
        raise Unreadable(f"scales of {scale} are of no format")
    integer = "int" in element
    try:
        return Numbers(
            element=element, scale=_SCALES[scale], zero_point=integer and zero_point, dynamic=False
        )
    except BlockscaleError as error:
        raise Unreadable(str(error)) from None


def _blocks(a: Args, x: str, scale: str) -> tuple[tuple[int, ...], str, Say]:
    """Block a dimension, the form of the scales, and how other blocks are said."""
    shape, given = a.shape(x), a.shape(scale)
    axis, size, rank = a.int("axis", 1), a.int("block_size", 0), len(shape)
    if math.prod(given) == 1 and len(given) < 2 and not (size and len(given) == rank):
        return whole(rank), "scalar", say_whole
    if size == 0 and len(given) == 1:
        block = per_channel(rank, axis)
        if shape[axis] != given[0]:
            raise Unreadable(f"{given[0]} scales for {shape[axis]} channels")
        return block, "channel", say_channel
    if size > 0 and len(given) == rank and -rank <= axis < rank:
        block = tuple(size if i == axis % rank else 1 for i in range(rank))
        full = tuple(-(-n // b) for n, b in zip(shape, block, strict=True))
        if given != full:
            raise Unreadable(f"scales of shape {given} for blocks that need {full}")
        return block, "full", _say_blocks
    raise Unreadable(f"scales of shape {given} on {shape}, block_size {size}")


def _say_blocks(layout: Layout, dims: Dims) -> dict[str, Any] | str:
    """Blocks along one axis, and a scale for each index of the others."""
    wide = [i for i, (b, n) in enumerate(zip(layout.block, layout.shape, strict=True)) if b != 1 and n != 1]
    if len(wide) > 1 or not layout.rank:
        return "it has blocks along one axis"
    axis = wide[0] if wide else layout.rank - 1
    size = layout.block[axis] or dims[axis]
    if not isinstance(size, int):
        return f"its block would be {size}, which is known only at run time"
    return {"axis": axis, "block_size": max(size, 1)}


def _quantize_linear(a: Args) -> Read:
    dtype, scale = a.out().dtype, a.meta("y_scale").dtype
    numbers = _numbers(dtype, scale, "y_zero_point" in a)
    block, form, say = _blocks(a, "x", "y_scale")
    if not a.int("saturate", 1):
        raise Unreadable("it does not saturate")
    precision = a.int("precision", 0)
    why = _why_floats(a, "x", "y_scale", numbers)
    if precision not in (0, 1):
        why = why or "it divides in another precision than float32"
    if numbers.element_format.is_float:
        why = why or "NaN has a code of its own"
    return "quantize", ("x", "y_scale", "y_zero_point"), Quant(
        numbers, block, False, form, say=say, identity=(dtype, precision),
        foreign=_foreign(why, dtype, numbers),
    )  # fmt: skip


def _dequantize_linear(a: Args) -> Read:
    dtype, scale = a.meta("x").dtype, a.meta("x_scale").dtype
    numbers = _numbers(dtype, scale, "x_zero_point" in a)
    block, form, say = _blocks(a, "x", "x_scale")
    why = _why_floats(a, "", "x_scale", numbers)
    return "dequantize", ("x", "x_scale", "x_zero_point"), Quant(
        numbers, block, False, form, say=say, identity=(dtype, a.out().dtype),
        foreign=_foreign(why, dtype, numbers),
    )  # fmt: skip


def _why_floats(a: Args, x: str, scale: str, numbers: Numbers) -> str:
    """Why the arithmetic is not ours, which is that of float32."""
    for name in (x, scale) if x else (scale,):
        dtype = a.meta(name).dtype
        if dtype not in ("float32", "float8_e8m0fnu"):
            return f"{name} is {dtype}, and it computes in that"
    if not x and a.out().dtype != "float32":
        return f"its result is {a.out().dtype}"
    value = a.value(scale)
    if value is not None and value.const is not None:
        scales = np.asarray(value.const.fetch()).astype(np.float64)
        if not ((scales > 0) & (scales <= _LARGEST_SCALE)).all():
            return "it has a scale that is not positive, or so large that results may overflow"
    elif numbers.family == "mx":
        return "its scales are not known, and with the largest of them results overflow"
    return ""


def _foreign(why: str, dtype: str, numbers: Numbers) -> Foreign:
    """Where ours would store other codes, only a quantize and its dequantize together can be ours."""
    return Foreign(why, pair=dtype != numbers.element_format.storage_dtype.name)


def _dynamic_quantize_linear(a: Args) -> Read:
    numbers = Numbers(element="uint8", scale="f32", zero_point=True, rule="asymmetric")
    outputs = ("codes", "scale", "zero_point")
    why = "its scale of a tensor of zeros is another"
    return "quantize", ("x",), Quant(
        numbers, whole(len(a.shape("x"))), False, "scalar", outputs, say=say_whole, zero_point=None,
        identity=("uint8",), foreign=Foreign(why),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------- AMD Quark

_QUARK_ROUNDINGS = ("half_away", "half_up", "half_even")


def quark_numbers(element_dtype: str, rounding_mode: int) -> Numbers | str:
    """Or why there are none."""
    element = "mxint8" if element_dtype == "int8" else str(element_dtype)
    if element not in MX_ELEMENTS:
        return f"element_dtype is {element_dtype}"
    if not 0 <= rounding_mode < len(_QUARK_ROUNDINGS):
        return f"rounding_mode is {rounding_mode}"
    rounding = _QUARK_ROUNDINGS[rounding_mode] if element == "mxint8" else "half_even"
    return Numbers(element=element, rounding=rounding, dialect="quark")


def quark_block(rank: int, axis: int, block_size: int) -> tuple[int, ...] | str:
    """Or why there is none; of one dimension the axis says nothing."""
    axis = 0 if rank == 1 else axis
    if block_size < 1:
        return f"block_size is {block_size}"
    if rank and not -rank <= axis < rank:
        return f"axis {axis} on {rank} dimensions"
    return tuple(block_size if i == axis % rank else 1 for i in range(rank))


def quark_attributes(numbers: Numbers, block: Sequence[int]) -> dict[str, Any] | str:
    """How MXQuantizeDequantize says this, or why it cannot: the inverse of the two above.

    Of formats that have one rounding the mode is that of Quark's presets.
    """
    element = "int8" if numbers.element == "mxint8" else numbers.element
    modes = range(len(_QUARK_ROUNDINGS))
    mode = next((mode for mode in reversed(modes) if quark_numbers(element, mode) == numbers), None)
    if mode is None:
        return f"{numbers} is not what it computes; MX numbers of dialect=quark are"
    place = _quark_place(block)
    if isinstance(place, str):
        return place
    return {"element_dtype": element, **place, "rounding_mode": mode}


def quark_operator(numbers: Numbers, block: Sequence[int]) -> tuple[str, dict[str, Any]] | str:
    """Which of Quark's operators says this, and how; or why none can."""
    if numbers.element in BFP_ELEMENTS:
        said, name = quark_bfp_attributes(numbers, block), "BFPQuantizeDequantize"
    else:
        said, name = quark_attributes(numbers, block), "MXQuantizeDequantize"
    return said if isinstance(said, str) else (name, said)


def quark_bfp_attributes(numbers: Numbers, block: Sequence[int]) -> dict[str, Any] | str:
    """How BFPQuantizeDequantize says this, or why it cannot: the inverse of the two below."""
    if numbers.rounding not in _QUARK_ROUNDINGS:
        return f"rounding {numbers.rounding!r} is none of {', '.join(_QUARK_ROUNDINGS)}"
    said: dict[str, Any] = {
        "bfp_method": "to_bfp_prime" if numbers.sub_block else "to_bfp",
        "bit_width": numbers.element_format.bits + 8,
        "rounding_mode": _QUARK_ROUNDINGS.index(numbers.rounding),
        "use_compiler_version_cpu_kernel": int(numbers.dialect == "quark_compiler"),
    }
    if numbers.sub_block:
        said |= {"sub_block_size": numbers.sub_block, "sub_block_shift_bits": numbers.sub_shift}
    meant = quark_bfp_numbers(
        said["bfp_method"], said["bit_width"], said["rounding_mode"], numbers.sub_block, numbers.sub_shift,
        said["use_compiler_version_cpu_kernel"],
    )  # fmt: skip
    if meant != numbers:
        return f"{numbers} is not what it computes; bfpN of dialect=quark are"
    place = _quark_place(block)
    return place if isinstance(place, str) else said | place


def _quark_place(block: Sequence[int]) -> dict[str, Any] | str:
    wide = [axis for axis, size in enumerate(block) if size != 1]
    axis = wide[0] if wide else len(block) - 1
    if len(wide) > 1 or not block or block[axis] < 1:
        return f"blocks of {tuple(block)} are not of one size along one axis"
    return {"axis": axis, "block_size": block[axis]}


def _quark(a: Args) -> Read:
    """MXQuantizeDequantize and, by its older name, MXFixNeuron."""
    shape = a.shape("x")
    numbers = quark_numbers(a.get("element_dtype", "int8"), a.int("rounding_mode", 0))
    block = quark_block(len(shape), a.int("axis", 1), a.int("block_size", 32))
    if isinstance(numbers, str) or isinstance(block, str):
        raise Unreadable(numbers if isinstance(numbers, str) else str(block))
    if a.meta("x").dtype not in ("float32", "float16"):
        raise Unreadable(f"x is {a.meta('x').dtype}")
    why = "it leaves a tensor of one element as it is" if math.prod(shape) == 1 else ""
    return "fake_quantize", ("x",), Quant(numbers, block, say=_say_blocks, foreign=Foreign(why))


def quark_bfp_numbers(
    method: str, bit_width: int, rounding_mode: int, sub_block_size: int, sub_block_shift_bits: int,
    compiler: int,
) -> Numbers | str:  # fmt: skip
    """Or why there are none."""
    element = f"bfp{bit_width}"
    if element not in BFP_ELEMENTS:
        return f"bit_width is {bit_width}, there are {BFP_ELEMENTS[0][3:]} to {BFP_ELEMENTS[-1][3:]}"
    if not 0 <= rounding_mode < len(_QUARK_ROUNDINGS):
        return f"rounding_mode is {rounding_mode}"
    rounding = _QUARK_ROUNDINGS[rounding_mode]
    if method == "to_bfp" and compiler:
        if bit_width != 16:
            return f"its compiler's version takes elements for 8 bits wide, and bit_width is {bit_width}"
        return Numbers(element=element, rounding=rounding, dialect="quark_compiler")
    if method == "to_bfp":
        return Numbers(element=element, rounding=rounding, dialect="quark")
    if method not in ("to_bfp_prime", "to_bfp_prime_shared"):  # two names of one
        return f"bfp_method is {method!r}"
    if sub_block_size < 1:
        return f"sub_block_size is {sub_block_size}"
    try:
        return Numbers(
            element=element, rounding=rounding, dialect="quark", sub_block=sub_block_size,
            sub_shift=sub_block_shift_bits,
        )  # fmt: skip
    except BlockscaleError as error:
        return str(error)


def quark_bfp_block(numbers: Numbers, rank: int, axis: int, block_size: int) -> tuple[int, ...] | str:
    """Or why there is none: elements behind the last whole sub-block are never written."""
    if numbers.sub_block and block_size % numbers.sub_block:
        return f"block_size is {block_size}, no multiple of sub_block_size {numbers.sub_block}"
    return quark_block(rank, axis, block_size)


def _quark_bfp(a: Args) -> Read:
    """BFPQuantizeDequantize and, by its older name, BFPFixNeuron."""
    shape = a.shape("x")
    numbers = quark_bfp_numbers(
        str(a.get("bfp_method", "to_bfp")), a.int("bit_width", 16), a.int("rounding_mode", 0),
        a.int("sub_block_size", 2), a.int("sub_block_shift_bits", 1),
        a.int("use_compiler_version_cpu_kernel", 0),
    )  # fmt: skip
    if isinstance(numbers, str):
        raise Unreadable(numbers)
    block = quark_bfp_block(numbers, len(shape), a.int("axis", 1), a.int("block_size", 8))
    if isinstance(block, str):
        raise Unreadable(block)
    if a.meta("x").dtype not in ("float32", "float16"):
        raise Unreadable(f"x is {a.meta('x').dtype}")
    why = "it leaves a tensor of one element as it is" if math.prod(shape) == 1 else ""
    if a.int("convert_to_bfloat_before_bfp", 0):
        why = "it rounds to bfloat16 first"
    return "fake_quantize", ("x",), Quant(numbers, block, say=_say_blocks, foreign=Foreign(why))


# ------------------------------------------------------------------------------------------- tables

# Inputs of operators that onnx has no schema of.
CUSTOM: dict[tuple[str, str], tuple[str, ...]] = {
    (DOMAIN, "FakeQuantize"): ("x", *_PARAMS),
    (DOMAIN, "Quantize"): ("x", *_PARAMS),
    (DOMAIN, "DynamicQuantize"): ("x", "tensor_scale"),
    (DOMAIN, "Dequantize"): ("codes", *_PARAMS),
    (DOMAIN, "MatMul"): ("x", "codes", *_PARAMS, "bias"),
    ("com.microsoft", "QuantizeLinear"): ("x", "y_scale", "y_zero_point"),
    ("com.microsoft", "DequantizeLinear"): ("x", "x_scale", "x_zero_point"),
    ("com.amd.quark", "MXQuantizeDequantize"): ("x",),
    ("com.vai.quantize", "MXFixNeuron"): ("x",),
    ("com.amd.quark", "BFPQuantizeDequantize"): ("x",),
    ("com.vai.quantize", "BFPFixNeuron"): ("x",),
}

# Operators that quantize, or compute on codes, also where no reader takes them.
ON_CODES = re.compile(
    r"(blockscale::.*|.*::(QLinear\w+|Q(Gemm|Attention|MoE)|\w+Integer|\w*QuantizeLinear|\w*DequantizeLinear|MatMul\w*(Bits|Bnb4)"
    r"|GatherBlockQuantized|\w*QuantizeDequantize|\w*FixNeuron))"
)

_CODEC = ("numbers", "block", "seed")
_QUARK = ("element_dtype", "axis", "block_size", "rounding_mode")
_QUARK_BFP = (
    "bfp_method", "axis", "bit_width", "block_size", "rounding_mode", "sub_block_size", "sub_block_shift_bits",
    "convert_to_bfloat_before_bfp", "use_compiler_version_cpu_kernel",
)  # fmt: skip

# Attributes of the operators that our library runs.
ATTRIBUTES: dict[tuple[str, str], tuple[str, ...]] = {
    (DOMAIN, "FakeQuantize"): _CODEC,
    (DOMAIN, "Quantize"): _CODEC,
    (DOMAIN, "DynamicQuantize"): _CODEC,
    (DOMAIN, "Dequantize"): ("numbers", "block", "shape", "dtype"),
    (DOMAIN, "MatMul"): ("numbers", "block", "shape", "trans_b", "x_numbers", "x_block"),
    ("com.amd.quark", "MXQuantizeDequantize"): _QUARK,
    ("com.vai.quantize", "MXFixNeuron"): _QUARK,
    ("com.amd.quark", "BFPQuantizeDequantize"): _QUARK_BFP,
    ("com.vai.quantize", "BFPFixNeuron"): _QUARK_BFP,
}

READERS: dict[str, Reader] = {
    "blockscale::FakeQuantize": _fake_quantize,
    "blockscale::Quantize": _quantize,
    "blockscale::DynamicQuantize": _dynamic_quantize,
    "blockscale::Dequantize": _dequantize,
    "ai.onnx::QuantizeLinear": _quantize_linear,
    "ai.onnx::DequantizeLinear": _dequantize_linear,
    "ai.onnx::DynamicQuantizeLinear": _dynamic_quantize_linear,
    "com.microsoft::QuantizeLinear": _quantize_linear,
    "com.microsoft::DequantizeLinear": _dequantize_linear,
    "com.amd.quark::MXQuantizeDequantize": _quark,
    "com.vai.quantize::MXFixNeuron": _quark,
    "com.amd.quark::BFPQuantizeDequantize": _quark_bfp,
    "com.vai.quantize::BFPFixNeuron": _quark_bfp,
}
