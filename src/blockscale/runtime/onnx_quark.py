"""AMD Quark's operators for onnx's reference evaluator, as Quark's own library computes them."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from blockscale.errors import ArgumentError, DtypeError
from blockscale.graph.onnx_quantizers import quark_bfp_block, quark_bfp_numbers, quark_block, quark_numbers
from blockscale.numerics import native
from blockscale.numerics.arrays import Array
from blockscale.numerics.layout import Layout
from blockscale.numerics.scheme import Numbers
from blockscale.runtime.onnx_ours import layout_of


class MXQuantizeDequantize(OpRun):
    op_domain = "com.amd.quark"

    def _run(
        self, x: Array, element_dtype: str = "int8", axis: int = 1, block_size: int = 32,
        rounding_mode: int = 0, **others: Any,
    ) -> tuple[Array]:  # fmt: skip
        numbers = _meant(self, quark_numbers(element_dtype, rounding_mode))
        layout = _layout(self, numbers, x, quark_block(x.ndim, axis, block_size))
        if prod(x.shape) == 1:  # it leaves one alone
            return (x,)
        return (native.fake_quantize(x, layout),)


class MXFixNeuron(MXQuantizeDequantize):
    op_domain = "com.vai.quantize"


class BFPQuantizeDequantize(OpRun):
    op_domain = "com.amd.quark"

    def _run(
        self, x: Array, bfp_method: str = "to_bfp", axis: int = 1, bit_width: int = 16, block_size: int = 8,
        rounding_mode: int = 0, sub_block_size: int = 2, sub_block_shift_bits: int = 1,
        convert_to_bfloat_before_bfp: int = 0, use_compiler_version_cpu_kernel: int = 0, **others: Any,
    ) -> tuple[Array]:  # fmt: skip
        if x.dtype not in (np.float32, np.float16):
            raise DtypeError("BFPQuantizeDequantize", x.dtype, "float32 or float16")
        numbers = _meant(self, quark_bfp_numbers(
            bfp_method, bit_width, rounding_mode, sub_block_size, sub_block_shift_bits,
            use_compiler_version_cpu_kernel,
        ))  # fmt: skip
        layout = _layout(self, numbers, x, quark_bfp_block(numbers, x.ndim, axis, block_size))
        wide = x.astype(np.float32)
        if convert_to_bfloat_before_bfp:
            wide = _as_bfloat16(wide)
        if prod(x.shape) != 1:  # it leaves one alone
            wide = native.fake_quantize(wide, layout)
        with np.errstate(over="ignore"):
            return (wide.astype(x.dtype),)


class BFPFixNeuron(BFPQuantizeDequantize):
    op_domain = "com.vai.quantize"


def _as_bfloat16(x: Array) -> Array:
    """Half to even on the bits, NaN too: of some of them it makes zeros or Inf."""
    bits = x.view(np.uint32)
    up = (bits & 0x7FFF) + ((bits >> 16) & 1) > 0
    rounded = bits + np.where((bits & 0x8000 != 0) & up, np.uint32(0x10000), np.uint32(0))
    return np.asarray(rounded & np.uint32(0xFFFF0000)).view(np.float32)


def _meant(operator: OpRun, numbers: Numbers | str) -> Numbers:
    if isinstance(numbers, str):
        raise ArgumentError(type(operator).__name__, numbers, "as AMD Quark writes them")
    return numbers


def _layout(operator: OpRun, numbers: Numbers, x: Array, block: tuple[int, ...] | str) -> Layout:
    if isinstance(block, str):
        raise ArgumentError(type(operator).__name__, block, "as AMD Quark writes them")
    return layout_of(numbers, x.shape, block)


QUARK: tuple[type[OpRun], ...] = (
    MXQuantizeDequantize, MXFixNeuron, BFPQuantizeDequantize, BFPFixNeuron,
)  # fmt: skip
