"""Headers of safetensors files, read with suspicion: nothing of the data is touched, nothing is trusted.

    file = u64 length of the header (little-endian) · header (JSON, UTF-8, begins with `{`) · data
    header = {name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {str: str}}

The tensors cover the data from its first to its last byte, without holes and without overlap.
"""

from __future__ import annotations

import json
import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from blockscale.errors import FileError

LONGEST_HEADER = 100_000_000  # that of the safetensors library

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One tensor: `begin` and `end` count from the first byte of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def read_header(path: Path) -> tuple[list[Entry], dict[str, str]]:
    """Tensors in the order of their data, and the metadata; FileError says what is wrong."""
    try:
        if path.exists() and not path.is_dir() and not path.is_file():
            # Opening a pipe may wait for ever.
            _refuse(path, "a pipe or a device; only files on a disk are read")
        with path.open("rb") as file:
            total = file.seek(0, 2)
            file.seek(0)
            start = file.read(8)
            length = int.from_bytes(start, "little")
            if len(start) < 8:
                _refuse(path, f"{total} bytes are too few for a safetensors file (the first 8 hold a length)")
            if length > min(LONGEST_HEADER, total - 8):
                _refuse(
                    path,
                    f"its first 8 bytes announce a header of {length} bytes, of {total - 8} that follow; "
                    "it is truncated, or no safetensors file",
                )
            text = file.read(length)
    except OSError as error:
        _refuse(path, error.strerror or str(error))
    return _parse(path, text, total - 8 - length, 8 + length)


def read_array(path: Path, entry: Entry) -> np.ndarray[Any, np.dtype[Any]]:
    """The tensor, mapped read-only; of F32, F16 and BF16 alone."""
    import ml_dtypes

    dtypes = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
    if entry.dtype not in dtypes:
        _refuse(path, f"tensor {entry.name!r} is {entry.dtype}; {', '.join(dtypes)} are read")
    if entry.size == 0:
        return np.empty(entry.shape, dtypes[entry.dtype])
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(data, dtypes[entry.dtype], entry.size, entry.begin).reshape(entry.shape)


def _parse(path: Path, text: bytes, data_bytes: int, start: int) -> tuple[list[Entry], dict[str, str]]:
    if not text.startswith(b"{"):
        _refuse(path, "the header does not begin with '{'; it is no safetensors file")
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        _refuse(path, f"the header is no valid JSON: {error}")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        _refuse(path, "__metadata__ is not a map from strings to strings")
    entries = [_entry(path, name, fields, start) for name, fields in header.items()]
    entries.sort(key=lambda one: (one.begin, one.end))
    at = start
    for one in entries:
        if one.begin != at:
            what = "overlaps the tensor before it" if one.begin < at else "leaves a hole before it"
            _refuse(path, f"tensor {one.name!r} begins at byte {one.begin - start} of the data and {what}")
        at = one.end
    if at - start != data_bytes:
        _refuse(path, f"tensors need {at - start} bytes of data, the file has {data_bytes}; it is damaged")
    return entries, metadata


def _entry(path: Path, name: str, fields: Any, start: int) -> Entry:
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        _refuse(path, f"tensor {name!r} is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        _refuse(path, f"tensor {name!r} has dtype {dtype!r}; known are {', '.join(BITS)}")
    if not _sizes(shape):
        _refuse(path, f"tensor {name!r} has shape {shape!r}; sizes are integers from 0")
    if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        _refuse(path, f"tensor {name!r} has data_offsets {offsets!r}; they are [begin, end]")
    bits = math.prod(shape) * BITS[dtype]
    begin, end = offsets
    if bits != 8 * (end - begin):
        _refuse(path, f"tensor {name!r}, {dtype}{shape}, needs {bits / 8:g} bytes and has {end - begin}")
    return Entry(name, dtype, tuple(shape), start + begin, start + end)


def _sizes(values: Any) -> bool:
    """A list of plain integers that fit 63 bits (true is no number here)."""
    return isinstance(values, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in values)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{twice!r} stands in it twice")
    return result


def _refuse(path: Path, reason: str) -> NoReturn:
    raise FileError(f"{path}: {reason if len(reason) <= 400 else reason[:397] + '...'}") from None
