"""Test vectors of the reference codec, for core/tests/codec_test.cpp. Little-endian, no padding:

    file     := "BSVECT01"  u32 n  numbers × n  u32 m  case × m
    numbers  := string × 6  i32 × 13       in the order of NAMES and FIELDS below (bs::NumberNames)
    string   := u8 length  bytes
    case     := u32 numbers  u8 type  u8 rank  u8 given  u64 seed  i64 shape × rank  i64 block × rank
                array x  array fake  array codes  array scales  array zero_points  array tensor_scale
                array raw  array decoded_f32  array decoded_bf16  array decoded_f16
    array    := u32 bytes  bytes           contiguous, in stored form; empty where there is none

type: of x and fake; 0 f32, 1 bf16, 2 f16. given: bit 0, the scales and zero points are given; bit 1, the
tensor scale is. Otherwise they are what must be chosen. raw: any codes, decoded with the same scales.
In a dialect without codes everything after fake is empty.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from blockscale.numerics import codec, native  # noqa: E402
from blockscale.numerics.codec import Params  # noqa: E402
from blockscale.numerics.formats import TENSOR_FORMATS  # noqa: E402
from blockscale.numerics.layout import Layout  # noqa: E402
from blockscale.numerics.packing import pack, unpack  # noqa: E402
from blockscale.numerics.scheme import Numbers  # noqa: E402
from conformance.core_cases import PLACES, all_numbers, data_for, placed, thinned  # noqa: E402

Array = np.ndarray[Any, np.dtype[Any]]

NAMES = ("element", "scale", "family", "rule", "rounding", "nonfinite")
FIELDS = (
    "zero_point", "quant_min", "quant_max", "saturates", "reciprocal", "nearly_half", "has_codes",
    "clamps", "flushes", "least_scale", "zero_scale", "int_low", "sub_block", "sub_shift",
    "zero_of_zero", "zero_of_underflow", "zero_of_tiny",
)  # fmt: skip

GIVEN, TENSOR_SCALE_GIVEN = 1, 2

# Large enough for several threads, and of few or large or ragged blocks; one for each family.
LARGE = (
    ("mx", (3, 16500), (1, 0)), ("mx", (700, 71), (350, 1)), ("mx", (50000,), (17,)),
    ("mx", (2, 160, 160), (1, 32, 0)), ("affine", (49999,), (0,)), ("affine", (250, 200), (0, 1)),
    ("affine", (4, 12500), (1, 8192)), ("tensor_scaled", (25, 2001), (1, 16)),
)  # fmt: skip


def write_vectors(path: Path, samples: int) -> None:
    """`samples` cases for each of the thinned combinations, and some large ones."""
    table = thinned(all_numbers())
    with np.errstate(all="ignore"):
        cases = list(_cases(table, samples))
    with path.open("wb") as file:
        file.write(b"BSVECT01" + struct.pack("<I", len(table)))
        file.writelines(map(_numbers, table))
        file.write(struct.pack("<I", len(cases)))
        file.writelines(cases)


def _cases(table: tuple[Numbers, ...], samples: int) -> Iterator[bytes]:
    for n, numbers in enumerate(table):
        for seed in range(n * samples, (n + 1) * samples):
            shape, block = PLACES[(n * 7 + seed * 5) % len(PLACES)]
            yield _case(n, placed(numbers, shape, block), TENSOR_FORMATS[(n + seed) % 3], seed)
    for i, (family, shape, block) in enumerate(LARGE):
        known = [n for n, one in enumerate(table) if one.family == family]
        n = known[i * 13 % len(known)]
        yield _case(n, placed(table[n], shape, block), TENSOR_FORMATS[i % 3], 1_000_000 + i)


def _numbers(numbers: Numbers) -> bytes:
    names = native.core_numbers(numbers)
    texts = [getattr(names, name).encode() for name in NAMES]
    values = [int(getattr(names, name)) for name in FIELDS]
    return b"".join(bytes([len(t)]) + t for t in texts) + struct.pack(f"<{len(values)}i", *values)


def _array(a: Any) -> bytes:
    data = b"" if a is None else np.ascontiguousarray(a).tobytes()
    return struct.pack("<I", len(data)) + data


def _case(index: int, layout: Layout, tensor_format: str, seed: int) -> bytes:
    numbers = layout.numbers
    x = data_for(numbers, layout.shape, tensor_format, seed)
    given, params, t = 0, None, None
    if not numbers.why_no_codes and seed % 3 == 1:
        given = GIVEN
        params = _other_params(layout, tensor_format, seed)
    elif numbers.tensor_scale and seed % 3 == 2:
        given = TENSOR_SCALE_GIVEN
        t = np.float32(_other_params(layout, tensor_format, seed).tensor_scale)
    key = (seed * 0x9E3779B97F4A7C15) & (2**64 - 1)
    fake = codec.fake_quantize(x, layout, params, tensor_format=tensor_format, tensor_scale=t, seed=key)
    head = struct.pack("<IBBBQ", index, TENSOR_FORMATS.index(tensor_format), layout.rank, given, key)
    head += struct.pack(f"<{2 * layout.rank}q", *layout.shape, *layout.block)
    parts = [x, fake]
    if not numbers.why_no_codes:
        codes, used = codec.quantize(x, layout, params, tensor_format=tensor_format, tensor_scale=t, seed=key)
        parts += [pack(np.asarray(codes), numbers.element_format), *stored(used, numbers)]
        parts += _decoded(layout, used, seed)
    else:
        parts += [None] * 8
    return head + b"".join(map(_array, parts))


def _other_params(layout: Layout, tensor_format: str, seed: int) -> Params:
    """Parameters of data other than that of the case."""
    x = data_for(layout.numbers, layout.shape, tensor_format, seed + 100_003)
    params = codec.choose_params(x, layout, tensor_format)
    if layout.numbers.family == "affine":  # not only scales that an absurd range gives
        normal = np.random.default_rng(seed).standard_normal(layout.shape).astype(np.float32)
        usual = codec.choose_params(normal, layout, tensor_format)
        every = np.arange(params.scales.size).reshape(layout.scale_shape) % 3 == 0
        params = replace(params, scales=np.where(every, params.scales, usual.scales))
    return params


def stored(params: Params, numbers: Numbers) -> list[Array | None]:
    """Scales, zero points and tensor scale in stored form."""
    zeros = None if params.zero_points is None else np.asarray(params.zero_points, np.int32)
    t = None if params.tensor_scale is None else np.asarray(params.tensor_scale, np.float32)
    return [np.asarray(params.scales).astype(native.scale_dtype(numbers)), zeros, t]


def _decoded(layout: Layout, params: Params, seed: int) -> list[Array]:
    """Any stored codes, and their values in each tensor format."""
    element = layout.numbers.element_format
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 256, (*layout.codes_shape, element.storage_dtype.itemsize), dtype=np.uint8)
    raw = np.ascontiguousarray(bits).view(element.storage_dtype)[..., 0]
    length = layout.shape[-1] if layout.shape else 1
    codes = unpack(raw, element, length)
    return [raw, *(codec.dequantize(codes, layout, params, f) for f in TENSOR_FORMATS)]
