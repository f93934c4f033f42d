"""Where calibration inputs come from, for every framework: iterables, readers, folders, random data.

Nothing is kept: a batch is read, given to the model, and gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from blockscale.errors import ArgumentError, CalibrationError
from blockscale.numerics.arrays import Array

_SEPARATORS = re.compile(r"[/\\:]")
Size = int | str | None  # of a dimension; a name or None where it is free


@dataclass(frozen=True)
class Input:
    """What a model takes. `shape` is None where not even the rank is known; `dtype` is numpy's name of it,
    None where it is not checked.
    """

    name: str
    shape: tuple[Size, ...] | None
    dtype: str | None

    def __str__(self) -> str:
        sizes = "any shape" if self.shape is None else f"[{', '.join(_size(n) for n in self.shape)}]"
        return f"{self.dtype or 'any dtype'} {sizes}"


def _size(n: Size) -> str:
    return "any" if n is None else str(n)


# ------------------------------------------------------------------------------------------ random data


@dataclass(frozen=True)
class Random:
    """`batches` inputs of random numbers: see `random`."""

    batches: int
    seed: int
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # (low, high)

    def __len__(self) -> int:
        return self.batches

    def draw(self, inputs: Sequence[Input]) -> Iterator[dict[str, Array]]:
        """The same numbers for the same inputs, seed and settings."""
        names = [one.name for one in inputs]
        for setting in (self.shapes, self.ranges):
            for name in setting:
                _check_known(name, names, "random calibration data")
        shapes = {one.name: self._shape(one) for one in inputs}
        for batch in range(self.batches):
            yield {
                one.name: self._values(one, shapes[one.name], np.random.default_rng((self.seed, batch, i)))
                for i, one in enumerate(inputs)
            }

    def _shape(self, one: Input) -> tuple[int, ...]:
        if one.name in self.shapes:
            return tuple(self.shapes[one.name])
        free = one.shape is None or any(not isinstance(n, int) for n in one.shape[1:])
        if free or one.shape is None:
            raise CalibrationError(
                f"random calibration data for input {one.name!r} ({one}): which sizes? "
                f"Say shapes={{{one.name!r}: (…)}}"
            )
        return tuple(n if isinstance(n, int) else 1 for n in one.shape)  # a free first size is the batch

    def _values(self, one: Input, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
        dtype = np.dtype(one.dtype or "float32")
        given = self.ranges.get(one.name)
        if dtype.kind == "b":
            return generator.random(shape) < 0.5
        if dtype.kind in "iu":
            low, high = given or (0, 2)
            return generator.integers(int(low), int(high), shape, np.int64).astype(dtype)
        if given is None:
            return generator.standard_normal(shape, np.float32).astype(dtype)
        return generator.uniform(*given, shape).astype(dtype)


def random(
    batches: int, seed: int = 0, *, shapes: Mapping[str, Sequence[int]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> Random:  # fmt: skip
    """Random numbers as calibration inputs, which have to be asked for: scales from them fit no real data.

    shapes   by input; needed where more than the first dimension is free (which then is 1)
    ranges   (low, high) by input: floats are uniform in it, else normal(0, 1); integers are low … high - 1,
             else 0 or 1
    """
    if not hasattr(batches, "__index__") or batches < 1:
        raise ArgumentError("batches", batches, "a positive integer")
    for name, pair in (ranges or {}).items():
        low, high = pair
        if not low < high:
            raise ArgumentError(f"ranges[{name!r}]", pair, "(low, high) with low < high")
    return Random(batches, seed, dict(shapes or {}), dict(ranges or {}))


# --------------------------------------------------------------------------------- what users may give


def items(source: Any, what: str = "calibration") -> Iterator[Any]:
    """What a reader with `get_next()` (until it gives None) or any iterable holds, one batch at a time."""
    if hasattr(source, "get_next"):
        while (item := source.get_next()) is not None:
            yield item
        return
    if isinstance(source, str | bytes | PathLike):
        raise CalibrationError(f"{what} = {source!r}: an iterable of inputs is wanted")
    if isinstance(source, Mapping) or hasattr(source, "dtype"):
        raise CalibrationError(
            f"{what} is a single {type(source).__name__}: put it in a list; each entry is a batch"
        )
    if not isinstance(source, Iterable):
        raise CalibrationError(
            f"{what} is a {type(source).__name__}: give an iterable of inputs, or an object with get_next()"
        )
    yield from source


def batches(source: Any, inputs: Sequence[Input]) -> Iterator[dict[str, Array]]:
    """Batches of `source` by input name, checked: each holds every input in its dtype and shape.

    source   an iterable of dicts (or of arrays, for a model with one input), an object with get_next(),
             a folder of .npy files (see `files_of`) or of .npz files, or `random(…)`
    """
    if isinstance(source, Random):
        found: Iterator[Any] = source.draw(inputs)
    elif isinstance(source, str | PathLike):
        found = _loaded(Path(source), inputs)
    else:
        found = items(source)
    for number, item in enumerate(found, 1):
        yield checked(item, inputs, f"calibration batch {number}")


def checked(item: Any, inputs: Sequence[Input], where: str) -> dict[str, Array]:
    names = [one.name for one in inputs]
    if not isinstance(item, Mapping):
        if len(inputs) != 1 or not hasattr(item, "__array__"):
            raise CalibrationError(
                f"{where} is a {type(item).__name__}: give a dict of numpy arrays by input name "
                f"({', '.join(names)})"
            )
        item = {names[0]: item}
    for name in item:
        _check_known(name, names, where)
    result = {}
    for one in inputs:
        if one.name not in item:
            raise CalibrationError(f"{where} lacks input {one.name!r} ({one})")
        result[one.name] = _checked_array(item[one.name], one, where)
    return result


def _check_known(name: str, names: Sequence[str], where: str) -> None:
    if name not in names:
        close = get_close_matches(str(name), names, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise CalibrationError(f"{where}: the model has no input {name!r}, only {', '.join(names)}{hint}")


def _checked_array(value: Any, one: Input, where: str) -> Array:
    try:
        array = np.asarray(value)
    except Exception as error:
        raise CalibrationError(f"{where}, input {one.name!r}: no numpy array ({error})") from error
    if one.dtype is not None and str(array.dtype) != one.dtype:
        raise CalibrationError(
            f"{where}, input {one.name!r} is {array.dtype}: the model takes {one.dtype}; "
            f"cast it, x.astype({one.dtype!r})"
        )
    if not fits(array.shape, one.shape):
        raise CalibrationError(
            f"{where}, input {one.name!r} has shape {list(array.shape)}: the model takes {one}"
        )
    return array


def fits(shape: Sequence[int], expected: Sequence[Size] | None) -> bool:
    if expected is None:
        return True
    if len(shape) != len(expected):
        return False
    return all(n == m for n, m in zip(shape, expected, strict=True) if isinstance(m, int))


# -------------------------------------------------------------------------------------------- folders


def files_of(folder: Path, names: Sequence[str]) -> list[dict[str, Path]]:
    """The .npy files of each batch, in the order of their names.

    One input:       folder/*.npy, each a batch
    several inputs:  folder/<input>/<batch>.npy, or folder/<input>.npy for a single batch

    In the names of inputs, `/`, `\\` and `:` are written `_`.
    """
    folders = {name: _SEPARATORS.sub("_", name) for name in names}
    if len(names) == 1 and not (folder / folders[names[0]]).is_dir():
        return [{names[0]: file} for file in _files(folder)]
    if all((folder / f"{name}.npy").is_file() for name in folders.values()):
        return [{name: folder / f"{folders[name]}.npy" for name in names}]
    by_input = {name: {file.name: file for file in _files(folder / folders[name])} for name in names}
    every = sorted({file for files in by_input.values() for file in files})
    for name, files in by_input.items():
        for file in every:
            if file not in files:
                raise CalibrationError(
                    f"calibration folder {str(folder)!r}: batch {file} lacks input {name!r}; each input has a "
                    f"folder of its own ({', '.join(folders.values())}), with files of the same names"
                )
    return [{name: by_input[name][file] for name in names} for file in every]


def _files(folder: Path, suffix: str = ".npy") -> list[Path]:
    return sorted(folder.glob(f"*{suffix}"))


def _loaded(folder: Path, inputs: Sequence[Input]) -> Iterator[dict[str, Array]]:
    """Of .npy files, or of .npz files that each hold a batch: an array by the name of each input."""
    if not folder.is_dir():
        raise CalibrationError(f"calibration folder {str(folder)!r}: there is no such folder")
    found, packed = files_of(folder, [one.name for one in inputs]), _files(folder, ".npz")
    if found and packed:
        raise CalibrationError(
            f"calibration folder {str(folder)!r} holds .npy and .npz files: which are meant?"
        )
    if not found and not packed:
        raise CalibrationError(f"calibration folder {str(folder)!r} holds no .npy and no .npz file")
    for files in found:
        yield {name: _load(file) for name, file in files.items()}
    for file in packed:
        yield _load(file)


def _load(file: Path) -> Any:
    """An array, or those of a .npz file by name."""
    try:
        with open(file, "rb") as stream:  # numpy leaves it open where it is no archive
            loaded = np.load(stream, allow_pickle=False)
            return dict(loaded) if isinstance(loaded, np.lib.npyio.NpzFile) else loaded
    except (ValueError, EOFError, OSError, BadZipFile) as error:
        raise CalibrationError(f"calibration file {str(file)!r} cannot be read: {error}") from error
