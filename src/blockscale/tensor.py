"""`QuantizedTensor`: codes and what decodes them, moved together or not at all.

Works on numpy arrays and on torch tensors (through the methods they have; nothing is imported).
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blockscale.errors import ArgumentError, AxisError, DtypeError, MoveError, OutError
from blockscale.numerics.arrays import TENSOR_DTYPES, Array
from blockscale.numerics.codec import Params
from blockscale.numerics.follow import Moved
from blockscale.numerics.invariants import check_stored, scale_dtype
from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import (
    Cat,
    Flip,
    Move,
    Permute,
    Reshape,
    Same,
    Shape,
    Slice,
    Split,
    axis_of,
)
from blockscale.numerics.packing import pack, unpack
from blockscale.numerics.through import runs_through, through


@dataclass(frozen=True, kw_only=True, eq=False)
class QuantizedTensor:
    """Stored codes, scales, zero points and tensor scale of one tensor; see `invariants` for what holds.

    Moves (reshape, permute, slicing, split, cat, `move`) take the scales along and give the same values
    as the move of the dequantized tensor, to the bit; where they cannot, a MoveError says why.
    """

    codes: Array
    scales: Array
    zero_points: Array | None = None
    tensor_scale: Array | None = None
    layout: Layout

    def __post_init__(self) -> None:
        if not isinstance(self.layout, Layout):
            raise ArgumentError("layout", self.layout, "a Layout: `bind(scheme, shape)` makes one")
        self._check_libraries()
        check_stored(self.layout, self.codes, self.scales, self.zero_points, self.tensor_scale)

    def _check_libraries(self) -> None:
        library = library_of(self.codes)
        if library is None:
            raise DtypeError("codes", f"of a {type(self.codes).__name__}", "a numpy array or a torch tensor")
        for name in ("scales", "zero_points", "tensor_scale"):
            given = getattr(self, name)
            of = "numpy" if isinstance(given, np.generic) else library_of(given)
            if of != library and not (given is None and name != "scales"):
                raise DtypeError(name, f"of a {type(given).__name__}", f"of {library}, as the codes are")

    @staticmethod
    def of(layout: Layout, codes: Array, params: Params) -> QuantizedTensor:
        """From what the reference codec gives: unpacked codes and their parameters."""
        zeros, t = params.zero_points, params.tensor_scale
        return QuantizedTensor(
            codes=pack(np.asarray(codes), layout.numbers.element_format),
            scales=np.asarray(params.scales).astype(scale_dtype(layout.numbers)),
            zero_points=None if zeros is None else np.asarray(zeros).astype(np.int32),
            tensor_scale=None if t is None else np.asarray(t, dtype=np.float32),
            layout=layout,
        )

    def unpacked(self) -> tuple[Array, Params]:
        """As the reference codec takes them: one int64 a code, and parameters (numpy)."""
        scales = np.asarray(self.scales)
        zeros = None if self.zero_points is None else np.asarray(self.zero_points).astype(np.int64)
        t = None if self.tensor_scale is None else np.asarray(self.tensor_scale)
        wide = np.int64 if scales.dtype == np.uint8 else np.float32
        return _unpacked(self.codes, self.layout), Params(scales.astype(wide), zeros, t)

    # -------------------------------------------------------------------------------- properties

    @property
    def shape(self) -> Shape:
        return self.layout.shape

    @property
    def ndim(self) -> int:
        return self.layout.rank

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales, zero points and tensor scale."""
        return sum(int(a.nbytes) for a in self._arrays() if a is not None)

    @property
    def bits_per_element(self) -> float:
        """Everything stored, per element; 0 for a tensor of size 0."""
        return 8 * self.nbytes / self.layout.size if self.layout.size else 0.0

    def _arrays(self) -> tuple[Array, Array, Array | None, Array | None]:
        return self.codes, self.scales, self.zero_points, self.tensor_scale

    def __repr__(self) -> str:
        return (
            f"QuantizedTensor({self.layout.numbers}, shape {self.shape}, block {self.layout.block}, "
            f"{self.bits_per_element:.2f} bits an element)"
        )

    def dequantize(self, dtype: Any = None, out: Any = None) -> Any:
        """The values, in `dtype` (float32 if None: f32, bf16, f16, or a numpy or torch dtype).

        An array of numpy for codes of numpy, a tensor for those of torch.
        """
        wanted = "f32" if dtype is None else tensor_format(dtype)
        if dtype is not None and out is not None and tensor_format(getattr(out, "dtype", out)) != wanted:
            raise OutError("out dtype", getattr(out, "dtype", None), f"{dtype}, as asked")
        return _DECODERS[library_of(self.codes) or ""](self, wanted, out)

    # ------------------------------------------------------------------------------------- moves

    def move(self, move: Move) -> QuantizedTensor:
        """The tensor after any move of one input and one output."""
        moved = _moved(self.layout, move)
        zero = (
            int(self.zero_points.reshape(-1)[0])
            if moved.at_zero_point and self.zero_points is not None
            else 0
        )
        (codes,) = _codes_through([self], move, moved, zero)
        return self._made(moved.layout, codes, *self._follow(moved.scale))

    def reshape(self, *shape: int | Sequence[int]) -> QuantizedTensor:
        """One size may be -1."""
        return self.move(Reshape(_ints("shape", shape)))

    def permute(self, *dims: int | Sequence[int]) -> QuantizedTensor:
        return self.move(Permute(_ints("dims", dims)))

    def transpose(self, dim0: int = -2, dim1: int = -1) -> QuantizedTensor:
        """Two dimensions exchanged."""
        order = list(range(self.ndim))
        a, b = axis_of(dim0, self.shape), axis_of(dim1, self.shape)
        order[a], order[b] = b, a
        return self.move(Permute(tuple(order)))

    def __iter__(self) -> Iterator[QuantizedTensor]:
        axis_of(0, self.shape)
        return (self[i] for i in range(self.shape[0]))

    def __getitem__(self, key: Any) -> QuantizedTensor:
        """Integers, slices, `...` and None, as in numpy."""
        result, shape, axis = self, [], 0
        for entry in _expanded(key, self.shape):
            if entry is None:
                shape.append(1)
                continue
            for move in _picks(entry, axis, self.shape[axis]):
                result = result.move(move)
            if isinstance(entry, slice):
                shape.append(result.shape[axis])
            axis += 1
        return result if tuple(shape) == result.shape else result.move(Reshape(tuple(shape)))

    def split(self, sizes: int | Sequence[int], axis: int = 0) -> tuple[QuantizedTensor, ...]:
        """Parts of the given sizes, or of one size with a last one that may be shorter."""
        n = self.shape[axis_of(axis, self.shape)]
        if not isinstance(sizes, Sequence):
            size = operator.index(sizes)
            if size < 1:
                raise ArgumentError("sizes", sizes, "a positive size, or a size for each part")
            sizes = [min(size, n - at) for at in range(0, n, size)] or [0]
        move = Split(axis, _ints("sizes", sizes))
        moved = _moved(self.layout, move)
        codes = _codes_through([self], move, moved, 0)
        followed = [self._follow(moved.scale)] * len(codes)
        if isinstance(moved.scale, Split):
            scales, zeros, t = followed[0]
            each = zip(scales, zeros if zeros is not None else [None] * len(codes), strict=True)
            followed = [(s, z, t) for s, z in each]
        parts = zip(moved.after, codes, followed, strict=True)
        return tuple(self._made(after, one, *rest) for after, one, rest in parts)

    @staticmethod
    def cat(tensors: Sequence[QuantizedTensor], axis: int = 0) -> QuantizedTensor:
        """One tensor of several, which share one kind of blocks."""
        if not tensors:
            raise ArgumentError("tensors", (), "at least one")
        first, *rest = tensors
        move = Cat(axis)
        moved = _moved(first.layout, move, *(other.layout for other in rest))
        for name in moved.equal:
            one = getattr(first, name)
            if not all(bool((getattr(other, name) == one).all()) for other in rest):
                raise _refusal(
                    f"the {name} of the parts differ, and one has to do for all", moved.before, move
                )
        (codes,) = _codes_through(tensors, move, moved, 0)
        scales, zeros, t = first.scales, first.zero_points, first.tensor_scale
        if isinstance(moved.scale, Cat):
            scales = moved.scale.apply([q.scales for q in tensors])
            zeros = None if zeros is None else moved.scale.apply([q.zero_points for q in tensors])
        return first._made(moved.layout, codes, scales, zeros, t)

    def _follow(self, scale: Move) -> tuple[Array, Array | None, Array | None]:
        zeros = None if self.zero_points is None else scale.apply(self.zero_points)
        return scale.apply(self.scales), zeros, self.tensor_scale

    @staticmethod
    def _made(
        layout: Layout, codes: Array, scales: Array, zeros: Array | None, t: Array | None
    ) -> QuantizedTensor:
        """Without looking at the values again: a legal move keeps what holds of them."""
        result = object.__new__(QuantizedTensor)
        fields = {"codes": codes, "scales": scales, "zero_points": zeros, "tensor_scale": t, "layout": layout}
        for name, value in fields.items():
            object.__setattr__(result, name, value)
        return result


# --------------------------------------------------------------------------------------- dequantize


def library_of(x: object) -> str | None:
    """ "numpy" or "torch"; torch is not imported to find out."""
    if isinstance(x, np.ndarray):
        return "numpy"
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return "torch" if tensor is not None and isinstance(x, tensor) else None


def tensor_format(dtype: Any) -> str:
    """The tensor format (f32, bf16, f16) that a dtype of numpy or torch, or a name, stands for."""
    name = str(dtype).removeprefix("torch.")
    if isinstance(dtype, type):
        name = np.dtype(dtype).name
    for known, of_numpy in TENSOR_DTYPES.items():
        if name in (known, of_numpy.name):
            return known
    raise DtypeError("result", dtype, "not taken; float32, bfloat16 and float16 (f32, bf16, f16) are")


def _decode_numpy(q: QuantizedTensor, dtype: str, out: Any) -> Any:
    from blockscale.numerics.native import Stored, dequantize  # compiled; the rest works without it

    if out is not None and library_of(out) != "numpy":
        raise OutError("out", type(out).__name__, "a numpy array, as the codes are")
    return dequantize(q.codes, q.layout, Stored(q.scales, q.zero_points, q.tensor_scale), dtype, out)


# How codes of a library become values. What runs on torch lies in a higher layer and adds itself.
_DECODERS: dict[str, Callable[[QuantizedTensor, str, Any], Any]] = {"numpy": _decode_numpy}


def decodes(library: str, decode: Callable[[QuantizedTensor, str, Any], Any]) -> None:
    """`decode(q, dtype, out)` is how codes of `library` are dequantized."""
    _DECODERS[library] = decode


# ------------------------------------------------------------------------------------------ helpers


def _moved(layout: Layout, move: Move, *others: Layout) -> Moved:
    result = through(layout, move, *others, codes=True)
    if not isinstance(result, Moved):
        raise _refusal(result.reason, (layout, *others), move)
    return result


def _refusal(reason: str, before: Sequence[Layout], move: Move) -> MoveError:
    def shown(shapes: Sequence[Shape]) -> str:
        return ", ".join(map(str, shapes))

    target = move.shapes(*(one.shape for one in before))
    return MoveError(
        f"the scales cannot follow: {reason}. tensor {shown([one.shape for one in before])}, "
        f"scale {shown([one.scale_shape for one in before])}, target {shown(target)}; dequantize first"
    )


def _codes_through(
    tensors: Sequence[QuantizedTensor], move: Move, moved: Moved, zero_point: int
) -> list[Array]:
    """Stored codes after a move: as bytes where no byte is torn apart, else unpacked on the way."""
    stored = [q.codes for q in tensors]
    layouts = [q.layout for q in tensors]
    element = layouts[0].numbers.element_format
    several = isinstance(move, Split)
    as_bytes: Move | None = moved.codes_at(zero_point)
    if element.packed:
        as_bytes = None
        if 8 % element.bits == 0:
            as_bytes = runs_through(8 // element.bits, layouts[0], move, *layouts[1:])
    if isinstance(as_bytes, Same):
        return [stored[0]]
    if as_bytes is not None:
        result = as_bytes.apply(stored if isinstance(move, Cat) else stored[0])
        return list(result) if isinstance(as_bytes, Split) else [result]
    codes = [_unpacked(q.codes, q.layout) for q in tensors]
    result = moved.codes_at(zero_point).apply(codes if isinstance(move, Cat) else codes[0])
    return [_like(stored[0], pack(part, element)) for part in (result if several else [result])]


def _unpacked(stored: Array, layout: Layout) -> Array:
    return unpack(np.asarray(stored), layout.numbers.element_format, layout.shape[-1] if layout.shape else 1)


def _like(example: Array, array: Array) -> Array:
    """`array` as the kind of array that `example` is."""
    return example.new_tensor(array) if hasattr(example, "new_tensor") else array


def _ints(argument: str, values: Any) -> Shape:
    """(2, 3) of f(2, 3) and of f((2, 3))."""
    if len(values) == 1 and isinstance(values[0], Sequence):
        values = values[0]
    try:
        return tuple(operator.index(v) for v in values)
    except TypeError:
        raise ArgumentError(argument, values, "integers") from None


def _expanded(key: Any, shape: Shape) -> list[Any]:
    """One integer or slice for each dimension, and None for each new one."""
    entries = list(key) if isinstance(key, tuple) else [key]
    for entry in entries:
        if not (entry is None or entry is ... or isinstance(entry, slice) or _is_int(entry)):
            raise ArgumentError(
                "index", entry, "integers, slices, `...` and None; for others use move(Gather(…))"
            )
    missing = len(shape) - sum(entry is not None and entry is not ... for entry in entries)
    if missing < 0 or sum(entry is ... for entry in entries) > 1:
        raise AxisError("index", key, f"at most one entry for each dimension of {shape}, and one `...`")
    at = next((i for i, entry in enumerate(entries) if entry is ...), None)
    if at is None:
        return entries + [slice(None)] * missing
    return entries[:at] + [slice(None)] * missing + entries[at + 1 :]


def _is_int(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool) and not getattr(value, "shape", ())


def _picks(entry: Any, axis: int, n: int) -> list[Move]:
    """The moves of one index; an integer leaves a dimension of 1."""
    if not isinstance(entry, slice):
        i = operator.index(entry)
        if not -n <= i < n:
            raise ArgumentError("index", i, f"from {-n} to {n - 1} in dimension {axis}")
        return [Slice(axis, i % n, i % n + 1)] if n > 1 else []
    try:
        found = range(n)[entry]
    except (TypeError, ValueError) as error:
        raise ArgumentError("index", entry, str(error)) from None
    if found == range(n):
        return []
    if not found:
        return [Slice(axis, 0, 0)]
    if found.step > 0:
        return [Slice(axis, found[0], found[-1] + 1, found.step)]
    back = [Slice(axis, found[-1], found[0] + 1, -found.step)] if len(found) < n else []
    return [*back, Flip((axis,))]
