"""linear, matmul, mm and addmm by a weight that is codes, for CPU tensors: the kernels of core/linear.h.

    x float            the product with the decoded weight, summed up in float32
    x dynamic          x is quantized in the kernel
    x codes            as they are

Where both operands are MXFP4, MXFP6 or MXINT8 in blocks of 32 along K the result is the canonical dot product
(numerics/dot.py) and then the bias, in float32, bit for bit, whatever the batch and the threads; otherwise it
is the product of the decoded operands within the bound of core/linear.h. It is rounded to its dtype once.

What there is no kernel for (`torch_packed.has_kernel`, blocks of x that lie across its rows, elements of more
than 8 bits, several matrices) is decoded and multiplied by ATen, as everything is with BLOCKSCALE_KERNELS=0
or in `decoding()`: the meaning of a graph operator by operator, which passes keep bit for bit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.errors import InstallationError
from blockscale.graph.fused_fields import FLOAT, Fields
from blockscale.numerics import native
from blockscale.numerics.layout import Layout
from blockscale.numerics.scheme import numbers_named
from blockscale.runtime import torch_packed
from blockscale.runtime.torch_bound import TYPE_INDEX, Bound, bound_to, check_codes, checked_params
from blockscale.runtime.torch_cpu import CPU, HOST, aligned, given_params
from blockscale.runtime.torch_fused_fields import about, edge_of, shape_of, value_of
from blockscale.runtime.torch_packed import Packed, core_numbers

ROWS = ("linear", "matmul", "mm", "addmm")
VARIABLE = "BLOCKSCALE_KERNELS"

_MATRICES = ("mm", "addmm")  # whose x has two dimensions
_F32 = TYPE_INDEX[torch.float32]
_NONE = 0  # the activation behind the product
_threads = torch.get_num_threads


def asked() -> bool:
    value = os.environ.get(VARIABLE, "1")
    if value not in ("0", "1"):
        raise InstallationError(f"{VARIABLE}={value!r}: 1 (the default), or 0 to decode and multiply by ATen")
    return value == "1"


_used = asked()


@contextmanager
def decoding() -> Iterator[None]:
    """Without kernels, in all threads."""
    global _used
    before, _used = _used, False
    try:
        yield
    finally:
        _used = before


class Given(NamedTuple):
    """Arguments of a row: x [..., K] is multiplied by w, [N, K] of linear and [K, N] of the others."""

    x: Tensor
    of_x: Fields
    w: Tensor
    of_w: Fields
    bias: Tensor | None
    of_bias: Fields
    out: Fields
    rest: Sequence[Any]
    compute: torch.dtype | None


def read(name: str, args: Sequence[Any], settings: Mapping[str, Any]) -> Given:
    """As the dispatcher gives them to a kernel: what has no default by place, the rest by name or not at all."""
    w = "weight" if name == "linear" else "y"
    get, biased = settings.get, name in ("linear", "addmm")
    five = 3 if biased else 2
    of_x = Fields._make((*args[five : five + 5], get("x_block"), get("x_last")))
    of_w = Fields._make((*args[five + 5 : five + 10], get(f"{w}_block"), get(f"{w}_last")))
    of_bias, bias = FLOAT, None
    if biased:
        bias = args[2]
        of_bias = Fields._make((*args[13:18], get("bias_block"), get("bias_last")))
    at = five + 5 * five
    out = Fields._make((*args[at : at + 5], get("out_block"), None))
    return Given(args[0], of_x, args[1], of_w, bias, of_bias, out, args[at + 5 :], get("compute"))


def product(name: str, given: Given) -> Tensor | None:
    """What the row gives before its output is quantized, or None where there is no kernel.

    Where arguments are wrong there is none either: who decodes says what is wrong.
    """
    x, of_x, w, of_w, bias, of_bias, _, rest, _ = given
    if not _used or of_w.scale is None or w.dim() != 2 or x.numel() == 0 or any(one != 1 for one in rest):
        return None
    dtype = _dtype(given)
    if dtype not in TYPE_INDEX or x.dim() == 0 or (name in _MATRICES and x.dim() != 2):
        return None
    weight = _weight(name, w, of_w)
    rows = None if weight.kernel is None else _rows(name, x, of_x)
    if rows is None or rows.length != weight.k:
        return None
    if bias is not None:
        bias = _bias(name, bias, of_bias, dtype, weight.n)
        if bias is None:
            return None
    elif of_bias.dtype or of_bias != FLOAT:
        return None
    y = torch.empty((*rows.lead, weight.n), dtype=dtype, device=CPU)
    x = rows.memory
    weight.kernel.linear(
        rows.number, rows.form, x.data_ptr(), rows.reach, rows.kind, rows.stride, y.data_ptr(), y.nbytes,
        TYPE_INDEX[dtype], weight.n, 0 if bias is None else bias.data_ptr(), 0 if bias is None else bias.nbytes,
        _NONE, HOST, _threads(),
    )  # fmt: skip
    return y


def _weight(name: str, w: Tensor, fields: Fields) -> Packed:
    transposed = name != "linear"
    found = torch_packed.found(w, fields, transposed)
    if found is None:
        with about(f"{name}, operand {'y' if transposed else 'weight'}"):
            found = torch_packed.packed(w, fields, transposed)
    return found


def _bias(name: str, bias: Tensor, fields: Fields, dtype: torch.dtype, n: int) -> Tensor | None:
    """N float32 numbers; None for another shape."""
    if fields.dtype or fields != FLOAT:
        with about(f"{name}, operand bias"):
            bias = value_of(bias, fields, dtype)
    if bias.shape != (n,) and bias.shape != (1, n):
        return None
    return aligned(bias.to(torch.float32).contiguous())


def _dtype(given: Given) -> torch.dtype | None:
    """Of the result: that of the float operands, which must be one."""
    found = given.compute
    for x, fields in ((given.x, given.of_x), (given.bias, given.of_bias)):
        if x is not None and fields.scale is None:
            if found is not None and x.dtype is not found:
                return None
            found = x.dtype
    return torch.float32 if found is None else found


# ----------------------------------------------------------------------------------- x as rows


class Rows(NamedTuple):
    """x [..., K] as the core takes it: `number` rows of `length`, `stride` elements apart."""

    memory: Tensor
    lead: tuple[int, ...]
    number: int
    length: int
    stride: int
    reach: int
    kind: int
    form: Any


class Place(NamedTuple):
    """Numbers of x bound to its rows, and how x is quantized by them."""

    bound: Bound
    form: Any


_AS_IT_IS = native.CoreInput()
_PLACES: dict[Any, Place | None] = {}
_MOST_PLACES = 4096


def _rows(name: str, x: Tensor, fields: Fields) -> Rows | None:
    if fields.scale is None and not fields.dtype:
        return None if fields != FLOAT else _float_rows(x, _AS_IT_IS)
    place = _place(name, x, fields)
    if place is None:
        return None
    if fields.scale is not None:
        return _coded_rows(name, x, fields, place.bound)
    if fields.zero_point is None:
        return _float_rows(x, place.form)
    form = _form(place.bound)
    with about(f"{name}, operand x"):
        tensor_scale = fields.zero_point if place.bound.numbers.tensor_scale else None
        zero_point = None if tensor_scale is not None else fields.zero_point
        params = checked_params(place.bound, x.device, None, zero_point, tensor_scale)
    form.given = given_params(place.bound, params)
    return _float_rows(x, form)


def _float_rows(x: Tensor, form: Any) -> Rows:
    shape = x.shape
    length, stride = shape[-1], shape[-1]
    count = x.numel() // length
    if not x.is_contiguous():
        if len(shape) == 2 and x.stride(1) == 1 and x.stride(0) >= length:
            stride = x.stride(0)
        else:
            x = x.contiguous()
    if x.data_ptr() % x.element_size():
        x, stride = x.contiguous().clone(), length
    reach = ((count - 1) * stride + length) * x.element_size()
    return Rows(x, tuple(shape[:-1]), count, length, stride, reach, TYPE_INDEX[x.dtype], form)


def _coded_rows(name: str, x: Tensor, fields: Fields, bound: Bound) -> Rows:
    scale, zero_point, tensor_scale = fields.scale.reshape(bound.scale_shape), fields.zero_point, None
    if bound.numbers.tensor_scale:
        zero_point, tensor_scale = None, zero_point
    elif zero_point is not None and bound.numbers.zero_point:
        zero_point = zero_point.reshape(bound.scale_shape)
    codes = aligned(x.contiguous()).reshape(bound.layout.codes_shape)
    with about(f"{name}, operand x"):
        check_codes(codes, bound)
        params = checked_params(bound, x.device, scale, zero_point, tensor_scale)
    form = _form(bound)
    form.coded, form.given = True, given_params(bound, params)
    count, length = bound.layout.shape
    return Rows(codes, tuple(x.shape[:-1]), count, length, length, codes.nbytes, _F32, form)


def _form(bound: Bound) -> Any:
    form = native.CoreInput()
    form.quantized_by(core_numbers(str(bound.numbers)))
    form.block_rows, form.block = bound.layout.block
    return form


def _place(name: str, x: Tensor, fields: Fields) -> Place | None:
    """None: not in rows, or of more than 8 bits."""
    scale, zero_point, dtype, low, high, block, last = fields
    key = (
        dtype, low, high, None if block is None else tuple(block), last, x.shape,
        None if scale is None else (scale.shape, scale.dtype), None if zero_point is None else zero_point.shape,
    )  # fmt: skip
    if key in _PLACES:
        return _PLACES[key]
    with about(f"{name}, operand x"):
        place = _found_place(x, fields)
    if len(_PLACES) >= _MOST_PLACES:
        _PLACES.clear()
    _PLACES[key] = place
    return place


def _found_place(x: Tensor, fields: Fields) -> Place | None:
    coded = fields.scale is not None
    shape = tuple(shape_of(x, fields) if coded else x.shape)
    text, block, scale, zero_point, _ = edge_of(fields, shape, quantizes=not coded)
    numbers = numbers_named(text)
    if numbers.why_no_codes or numbers.element_format.bits > 8:
        return None
    layout = Layout(numbers, shape, tuple(block))
    for one in (scale, zero_point):
        if one is not None and tuple(one.shape) not in (layout.scale_shape, (0,)):
            return None
    rows = _rows_of_block(layout)
    if rows is None:
        return None
    bound = bound_to(text, (prod(shape[:-1]), shape[-1]), (rows, layout.block[-1]))
    return Place(bound, _form(bound))


def _rows_of_block(layout: Layout) -> int | None:
    """1: a scale a row. 0: one for all rows. None: something else."""
    pairs = [(n, b) for n, b in zip(layout.shape[:-1], layout.block[:-1], strict=True) if n != 1]
    if all(b == 1 for _, b in pairs):
        return 1
    return 0 if all(b == 0 or b >= n for n, b in pairs) else None
