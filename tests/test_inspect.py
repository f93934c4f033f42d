"""safetensors headers, attacked; and which tensors are recognised as block-scaled weights."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockscale.errors import FileError
from blockscale.report.checkpoint import recognized
from blockscale.report.safetensors import BITS, read_array, read_header


def written(path: Path, header: Any, data: bytes = b"", announced: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if announced is None else announced).to_bytes(8, "little") + text + data)
    return path


def tensors(**shapes: tuple[str, list[int]]) -> tuple[dict[str, Any], bytes]:
    """A header and its data."""
    header, at = {}, 0
    for name, (dtype, shape) in shapes.items():
        size = int(np.prod(shape)) * BITS[dtype] // 8
        header[name.replace("__", ".")] = {
            "dtype": dtype, "shape": shape, "data_offsets": [at, at + size]
        }  # fmt: skip
        at += size
    return header, bytes(at)


def one(**changes: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


ATTACKS: dict[str, tuple[Any, bytes, str]] = {
    "no object": (b"[1]", b"", "does not begin with '{'"),
    "no json": (b"{,}", b"", "no valid JSON"),
    "no utf-8": (b'{"\xff": 1}', b"", "no valid JSON"),
    "deep": (b'{"a":' + b"[" * 100_000, b"", "no valid JSON"),
    "long number": (b'{"a":' + b"9" * 10_000 + b"}", b"", "no valid JSON"),
    "twice": (b'{"a": 1, "a": 2}', b"", "'a' stands in it twice"),
    "not described": ({"a": 5}, b"", "not described by"),
    "field missing": ({"a": {"dtype": "F32", "shape": []}}, b"", "not described by"),
    "dtype": (one(dtype="F33"), bytes(8), "known are"),
    "dtype is a list": (one(dtype=[]), bytes(8), "known are"),
    "negative size": (one(shape=[-2]), bytes(8), "integers from 0"),
    "size is true": (one(shape=[True, 2]), bytes(8), "integers from 0"),
    "size is no list": (one(shape=2), bytes(8), "integers from 0"),
    "huge size": (one(shape=[1 << 70]), bytes(8), "integers from 0"),
    "product overflows": (one(shape=[1 << 62, 1 << 62]), bytes(8), "needs"),
    "offsets swapped": (one(data_offsets=[8, 0]), bytes(8), "begin, end"),
    "three offsets": (one(data_offsets=[0, 8, 8]), bytes(8), "begin, end"),
    "too few bytes": (one(data_offsets=[0, 4]), bytes(4), "needs 8 bytes and has 4"),
    "beyond the end": (one(), bytes(4), "need 8 bytes of data, the file has 4"),
    "trailing bytes": (one(), bytes(9), "the file has 9"),
    "hole": (one(data_offsets=[4, 12]), bytes(12), "leaves a hole"),
    "overlap": (one() | {"b": one(data_offsets=[4, 12])["a"]}, bytes(12), "overlaps"),
    "metadata": ({"__metadata__": {"a": 1}}, b"", "strings"),
    "metadata no map": ({"__metadata__": 3}, b"", "strings"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_are_named(tmp_path: Path, name: str) -> None:
    header, data, text = ATTACKS[name]
    path = written(tmp_path / "x.safetensors", header, data)
    with pytest.raises(FileError, match=text) as caught:
        read_header(path)
    assert str(caught.value).startswith(str(path)) and len(str(caught.value)) < 1000


@pytest.mark.parametrize("length", [0, 7, 8, 9, 40])
def test_truncated(tmp_path: Path, length: int) -> None:
    path = written(tmp_path / "x.safetensors", one(), bytes(8))
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(FileError, match=r"too few|truncated"):
        read_header(path)


def test_announced_header_is_not_believed(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="announce a header"):
        read_header(written(tmp_path / "x", b"{}", announced=(1 << 64) - 1))


def test_absent_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        read_header(tmp_path / "absent")
    with pytest.raises(FileError):
        read_header(tmp_path)


@given(data=st.binary(max_size=200), length=st.integers(0, 300))
def test_fuzz_any_bytes(data: bytes, length: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + data)
    with contextlib.suppress(FileError):
        read_header(path)


def test_what_safetensors_writes(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.zeros((0, 4), np.float16),
        "c": np.array(1.5, np.float32),
        "d": np.zeros(3, np.int64),
    }
    save_file(arrays, tmp_path / "x.safetensors", {"made": "here"})
    entries, metadata = read_header(tmp_path / "x.safetensors")
    assert metadata == {"made": "here"}
    assert {entry.name: entry.shape for entry in entries} == {k: a.shape for k, a in arrays.items()}
    for entry in entries:
        if entry.name != "d":
            read = read_array(tmp_path / "x.safetensors", entry)
            np.testing.assert_array_equal(read, arrays[entry.name])
            assert read.dtype == arrays[entry.name].dtype
        else:
            with pytest.raises(FileError, match="I64"):
                read_array(tmp_path / "x.safetensors", entry)


KINDS: dict[str, tuple[dict[str, tuple[str, list[int]]], str, str, list[int], float]] = {
    "compressed-tensors mxfp4": (
        {"w__weight_packed": ("U8", [4, 32]), "w__weight_scale": ("U8", [4, 2])},
        "mxfp4", "compressed-tensors", [4, 64], 4.25),
    "compressed-tensors mxfp6": (
        {"w__weight_packed": ("U8", [4, 48]), "w__weight_scale": ("U8", [4, 2])},
        "mxfp6_e2m3", "compressed-tensors", [4, 64], 6.25),
    "compressed-tensors mxfp8": (
        {"w__weight": ("F8_E4M3", [4, 64]), "w__weight_scale": ("U8", [4, 2])},
        "mxfp8_e4m3", "compressed-tensors", [4, 64], 8.25),
    "compressed-tensors nvfp4": (
        {"w__weight_packed": ("U8", [4, 32]), "w__weight_scale": ("F8_E4M3", [4, 4]),
         "w__weight_global_scale": ("F32", [1])},
        "nvfp4", "compressed-tensors", [4, 64], 4.625),
    "Quark": (
        {"w__weight": ("U8", [4, 32]), "w__weight_scale": ("U8", [4, 2])}, "mxfp4", "Quark", [4, 64], 4.25),
    "gpt-oss": (
        {"w__up_blocks": ("U8", [2, 4, 3, 16]), "w__up_scales": ("U8", [2, 4, 3])},
        "mxfp4", "gpt-oss", [2, 4, 96], 4.25),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_recognized(tmp_path: Path, kind: str) -> None:
    shapes, format, written_by, shape, bits = KINDS[kind]
    entries, _ = read_header(written(tmp_path / "x", *tensors(**shapes)))
    (found,) = recognized(entries)
    assert (found.format, found.written_by, list(found.shape)) == (format, written_by, shape)
    assert found.bits_per_weight == bits
    assert set(found.tensors) == {entry.name for entry in entries}


@pytest.mark.parametrize(
    "shapes",
    [
        {"w__weight": ("F32", [4, 64]), "w__weight_scale": ("F32", [4, 1])},
        {"w__weight_packed": ("U8", [4, 32])},
        {"w__weight_packed": ("U8", [4, 32]), "w__weight_scale": ("U8", [4, 3])},
        {"w__weight_packed": ("U8", [4, 32]), "w__weight_scale": ("F8_E4M3", [4, 4])},
        {"w_blocks": ("U8", [4, 3, 15]), "w_scales": ("U8", [4, 3])},
        {"w__weight_packed": ("U8", [32]), "v__weight_scale": ("U8", [2])},
    ],
)
def test_not_recognized(tmp_path: Path, shapes: dict[str, tuple[str, list[int]]]) -> None:
    entries, _ = read_header(written(tmp_path / "x", *tensors(**shapes)))
    assert recognized(entries) == []
