"""The public functions: what is given is read and checked here, then handed to the codec of its library.

numpy arrays go to the compiled core, torch tensors to torch.ops.blockscale.*; the same kind comes out.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

import numpy as np

from blockscale.errors import ArgumentError, CombinationError, DtypeError, OutError, ScaleError
from blockscale.graph.operands import operands_of
from blockscale.numerics import native
from blockscale.numerics.arrays import TENSOR_DTYPES
from blockscale.numerics.invariants import scale_dtype
from blockscale.numerics.layout import Layout, bind, block_of_scale
from blockscale.numerics.native import Stored
from blockscale.numerics.scheme import PRESETS, Scheme, refined, scheme_named
from blockscale.recipe import Operand, Recipe, Rule, lists_operands
from blockscale.recipe_rules import Region
from blockscale.tensor import QuantizedTensor, decodes, library_of, tensor_format

__all__ = ["QuantizedTensor", "Recipe", "Rule", "choose_params", "dequantize", "fake_quantize", "quantize"]

Axis = int | tuple[int, ...] | None


def fake_quantize(
    x: Any, layout: str | Scheme | Layout, *, axis: Axis = None, block: Axis = None,
    rule: str | None = None, rounding: str | None = None, dialect: str | None = None,
    scale: Any = None, zero_point: Any = None, tensor_scale: Any = None, seed: int = 0, out: Any = None,
) -> Any:  # fmt: skip
    """The values that x has after being quantized and dequantized: same shape, dtype and library.

    layout        name of a preset ("mxfp4", "int4-g32", …), a Scheme, or a Layout of x.shape
    axis … dialect   change the scheme; None leaves what it says
    scale         in stored form, of layout.scale_shape; chosen from x if None.
                  Affine: also a number, the compact form ([K], [K, groups]), or, for a scheme per tensor,
                  a scale of full rank, whose shape then is the block layout
    zero_point    int32 like scale, where the numbers have one
    tensor_scale  NVFP4: float32; from x if None
    seed          of stochastic rounding; the result does not depend on threads or instruction set
    out           takes the result; x itself works in place
    """
    codec = _codec_of(x, "x")
    if out is not None and library_of(out) != library_of(x):
        raise OutError("out", type(out).__name__, f"a {_kind(x)}, as x is")
    given = scale is not None or zero_point is not None
    if not given and not isinstance(layout, Layout) and _is_compiling(x):
        numbers, blocks = _operator_place(
            layout, x.dim(), axis=axis, block=block, rule=rule, rounding=rounding, dialect=dialect
        )
        return _compiled_fake_quantize(x, numbers, blocks, tensor_scale, seed, out)
    place = _place(layout, axis=axis, block=block, rule=rule, rounding=rounding, dialect=dialect)
    if not given:
        result = codec.fake_quantize(x, place, tensor_scale=tensor_scale, seed=seed, out=out)
    else:
        bound, params = _given(place, x, scale, zero_point, tensor_scale)
        result = codec.fake_quantize(x, bound, params, seed=seed, out=out)
    return result


def quantize(
    x: Any, layout: str | Scheme | Layout, *, axis: Axis = None, block: Axis = None,
    rule: str | None = None, rounding: str | None = None, dialect: str | None = None,
    scale: Any = None, zero_point: Any = None, tensor_scale: Any = None, seed: int = 0,
) -> QuantizedTensor:  # fmt: skip
    """Codes with the scales that decode them; arguments as for `fake_quantize`."""
    codec = _codec_of(x, "x")
    place = _place(layout, axis=axis, block=block, rule=rule, rounding=rounding, dialect=dialect)
    bound = place if isinstance(place, Layout) else bind(place, x.shape)
    if scale is None and zero_point is None:
        codes, params = codec.quantize(x, bound, tensor_scale=tensor_scale, seed=seed)
    else:
        bound, params = _given(place, x, scale, zero_point, tensor_scale)
        codes, params = codec.quantize(x, bound, params, seed=seed)
    return QuantizedTensor(
        codes=codes, scales=params.scales, zero_points=params.zero_points,
        tensor_scale=params.tensor_scale, layout=bound,
    )  # fmt: skip


def dequantize(q: QuantizedTensor, dtype: Any = None, out: Any = None) -> Any:
    """The values of q in `dtype` (float32 if None), or in `out` in its own dtype."""
    if not isinstance(q, QuantizedTensor):
        raise DtypeError("q", type(q).__name__, "a QuantizedTensor, as `quantize` returns")
    return q.dequantize(dtype, out)


def choose_params(
    x: Any, layout: str | Scheme | Layout, *, axis: Axis = None, block: Axis = None,
    rule: str | None = None, rounding: str | None = None, dialect: str | None = None,
    tensor_scale: Any = None,
) -> Stored:  # fmt: skip
    """What `quantize` would choose: .scales, .zero_points and .tensor_scale, in stored form."""
    codec = _codec_of(x, "x")
    place = _place(layout, axis=axis, block=block, rule=rule, rounding=rounding, dialect=dialect)
    result: Stored = codec.choose_params(x, place, tensor_scale=tensor_scale)
    return result


# ------------------------------------------------------------------------------------------ codecs


class _Numpy:
    """`native` with schemes bound to the shape of x."""

    @staticmethod
    def fake_quantize(x: Any, place: Scheme | Layout, *args: Any, tensor_scale: Any = None, **kw: Any) -> Any:
        t = _number(tensor_scale)
        return native.fake_quantize(x, _bound(place, x), *args, tensor_scale=t, **kw)

    @staticmethod
    def quantize(x: Any, place: Scheme | Layout, *args: Any, tensor_scale: Any = None, **kw: Any) -> Any:
        return native.quantize(x, _bound(place, x), *args, tensor_scale=_number(tensor_scale), **kw)

    @staticmethod
    def choose_params(x: Any, place: Scheme | Layout, tensor_scale: Any) -> Stored:
        return native.choose_params(x, _bound(place, x), tensor_scale=_number(tensor_scale))


def _codec_of(x: object, argument: str) -> Any:
    library = library_of(x)
    if library == "torch":
        from blockscale.runtime import torch_ops

        return torch_ops
    if library is None or isinstance(x, np.ma.MaskedArray):
        raise DtypeError(
            argument, f"of a {type(x).__name__}",
            "a numpy array or a torch tensor of float32, bfloat16 or float16; "
            "numpy.asarray(x, dtype=numpy.float32) makes one",
        )  # fmt: skip
    return _Numpy


def _is_compiling(x: Any) -> bool:
    """Whether torch.compile or torch.export is tracing."""
    return library_of(x) == "torch" and bool(sys.modules["torch"].compiler.is_compiling())


def _compiled_fake_quantize(
    x: Any, numbers: str, block: tuple[int, ...], tensor_scale: Any, seed: int, out: Any
) -> Any:
    """The operator itself: a Scheme made while tracing cannot be handed on as a constant."""
    import torch

    if tensor_scale is not None and not isinstance(tensor_scale, torch.Tensor):
        tensor_scale = torch.full((), tensor_scale, dtype=torch.float32, device=x.device)
    operator = torch.ops.blockscale.fake_quantize
    seed = seed if seed < 1 << 63 else seed - (1 << 64)
    if out is None:
        return operator.default(x, numbers, block, None, None, tensor_scale, seed=seed)
    return operator.out(x, numbers, block, None, None, tensor_scale, seed=seed, out=out)


def _decode_torch(q: QuantizedTensor, dtype: str, out: Any) -> Any:
    from blockscale.runtime import torch_ops

    if out is not None and library_of(out) != "torch":
        raise OutError("out", type(out).__name__, "a torch tensor, as the codes are")
    params = Stored(q.scales, q.zero_points, q.tensor_scale)
    return torch_ops.dequantize(q.codes, q.layout, params, dtype, out)


def _operands(model: Any, regions: Sequence[Region]) -> list[Operand]:
    """Of what has an adapter, and of files and ModelProtos as `quantize_model` reads them."""
    from blockscale import model_api

    return operands_of(model_api.adapted(model), regions)


decodes("torch", _decode_torch)
lists_operands(_operands)


# ------------------------------------------------------------------------------------------ layout


def _place(layout: str | Scheme | Layout, **changes: Any) -> Scheme | Layout:
    """The scheme, changed as asked; a Layout only where one was given."""
    if isinstance(layout, Layout):
        for name in ("axis", "block"):
            if changes.pop(name) is not None:
                raise CombinationError(f"{name} with a Layout, which has its blocks; give a Scheme")
        if not any(changes.values()):
            return layout
        numbers = refined(Scheme(**asdict(layout.numbers)), **changes).numbers
        return replace(layout, numbers=numbers)
    if isinstance(layout, str):
        layout = scheme_named(layout)
    elif not isinstance(layout, Scheme):
        raise ArgumentError(
            "layout", layout, f"the name of a preset ({', '.join(PRESETS)}, …), a Scheme or a Layout"
        )
    if not any(value is not None for value in changes.values()):
        return layout
    for name in ("axis", "block"):
        if isinstance(changes[name], list):
            changes[name] = tuple(changes[name])
    if not all(map(_is_hashable, changes.values())):
        return refined(layout, **changes)  # says what is wrong: no value that is allowed is unhashable
    return _refined(layout, **changes)


def _operator_place(layout: str | Scheme, rank: int, **changes: Any) -> tuple[str, tuple[int, ...]]:
    """Numbers and block as the torch operators take them."""
    place = _place(layout, **changes)
    return str(place.numbers), bind(place, (1,) * rank).block  # type: ignore[arg-type]


# For torch.compile a constant: what torch.compiler.assume_constant_result says, without importing torch.
_operator_place._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _is_hashable(value: object) -> bool:
    return getattr(type(value), "__hash__", None) is not None


_refined = lru_cache(maxsize=1024)(refined)  # making a Scheme takes longer than quantizing a small tensor


def _bound(place: Scheme | Layout, x: Any) -> Layout:
    return place if isinstance(place, Layout) else bind(place, x.shape)


# -------------------------------------------------------------------------------------- parameters


def _given(
    place: Scheme | Layout, x: Any, scale: Any, zero_point: Any, tensor_scale: Any
) -> tuple[Layout, Stored]:
    """The layout, and given parameters as arrays of the library of x and of full rank."""
    if scale is None:
        raise ScaleError("zero_point", zero_point, "None where no scale is given")
    numbers = place.numbers
    if numbers.why_no_codes:
        raise CombinationError(
            f"{numbers.why_no_codes}, so none of its scales can be given; "
            + (f"use {numbers.element!r}" if numbers.sub_block else "use dialect='ocp'")
        )
    by_shape = isinstance(place, Scheme) and not place.axes and numbers.family == "affine"
    if by_shape and _several(scale):
        bound = Layout(numbers, tuple(x.shape), block_of_scale(x.shape, scale.shape))
    else:
        bound = _bound(place, x)
    scale = _array("scale", scale, x, str(scale_dtype(numbers)), bound)
    if zero_point is not None:
        zero_point = _array("zero_point", zero_point, x, "int32", bound)
    if tensor_scale is not None:
        scalar = replace(bound, shape=(), block=())
        tensor_scale = _array("tensor_scale", tensor_scale, x, "float32", scalar)
    return bound, Stored(scale, zero_point, tensor_scale)


def _several(scale: Any) -> bool:
    return library_of(scale) is not None and math.prod(scale.shape) != 1


def _array(argument: str, value: Any, x: Any, dtype: str, layout: Layout) -> Any:
    """`value` as an array like x in library and device; a number becomes one of `dtype`."""
    shape = layout.scale_shape
    if library_of(value) is None:
        if layout.numbers.family != "affine" and argument == "scale":
            raise ScaleError(
                "scale", value, f"an array of {layout.numbers.scale} codes, {dtype}{list(shape)}"
            )
        if not _is_number(value):
            raise DtypeError(
                argument, f"of a {type(value).__name__}", f"a {_kind(x)} of {dtype}, or a number"
            )
        if math.prod(shape) != 1:
            raise ScaleError(f"{argument} shape", "that of a number", f"{shape}, one entry a block")
        _check_number(argument, value, dtype)
        return _filled(value, x, dtype, shape)
    if library_of(value) != library_of(x):
        raise DtypeError(argument, f"of a {type(value).__name__}", f"a {_kind(x)}, as x is")
    given = tuple(value.shape)
    if given != shape and given in _other_forms(layout):
        return value.reshape(shape)
    return value


def _other_forms(layout: Layout) -> Sequence[tuple[int, ...]]:
    """Shapes that stand for layout.scale_shape without doubt: compact, and of a single entry."""
    if layout.per_tensor:
        return [(), (1,), (1,) * layout.rank]
    return [layout.compact_scale_shape] if layout.has_compact_form else []


def _check_number(argument: str, value: Any, dtype: str) -> None:
    """What cannot become a number of `dtype`; which numbers are right is checked with the arrays."""
    if dtype == "int32":
        whole = value == value and abs(value) < 1 << 31 and int(value) == value
        if not whole:
            raise ScaleError(argument, value, "an integer of 32 bits")
    elif isinstance(value, int) and abs(value) >= 1 << 128:
        raise ScaleError(argument, value, "finite in float32")


def _filled(value: Any, x: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    if library_of(x) == "torch":
        import torch

        return torch.full(shape, value, dtype=getattr(torch, dtype), device=x.device)
    with np.errstate(over="ignore"):
        return np.full(shape, value, dtype if dtype == "int32" else TENSOR_DTYPES[tensor_format(dtype)])


def _is_number(value: object) -> bool:
    """A real number, of Python or numpy; True and False are none."""
    if isinstance(value, np.generic):
        return bool(np.issubdtype(value.dtype, np.integer)) or value.dtype in _REAL
    return isinstance(value, int | float) and not isinstance(value, bool)


_REAL = {np.dtype(np.float64), *TENSOR_DTYPES.values()}


def _kind(x: Any) -> str:
    return "torch tensor" if library_of(x) == "torch" else "numpy array"


def _number(tensor_scale: Any) -> float | None:
    """A tensor scale as native takes it: a number, or an array of one."""
    if tensor_scale is None:
        return None
    of_numpy = library_of(tensor_scale) == "numpy"
    if of_numpy and tensor_scale.size != 1:
        raise ScaleError("tensor_scale shape", tensor_scale.shape, "()")
    if of_numpy:
        tensor_scale = tensor_scale.reshape(())[()]
    if not _is_number(tensor_scale):
        raise DtypeError(
            "tensor_scale", f"of a {type(tensor_scale).__name__}", "a number or a numpy array of shape ()"
        )
    try:
        return float(tensor_scale)
    except OverflowError:  # an integer beyond every float
        return math.inf
