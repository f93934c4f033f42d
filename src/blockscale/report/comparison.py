"""How far two runs of a model are apart, tensor by tensor."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from blockscale.errors import ShapeError
from blockscale.numerics.arrays import Array


@dataclass(frozen=True)
class Difference:
    """Of one tensor, over all batches. With a the reference and b the other:

    sqnr       10 log10(Σ a² / Σ (a - b)²), in dB; inf where every element is equal
    cosine     Σ ab / √(Σ a² Σ b²); 1 where every element is equal
    max_error  max |a - b|
    peak       max |a|

    A NaN equals a NaN, an infinity itself. Where b has one and a has not, or the other way round, sqnr is
    -inf, cosine NaN and max_error inf.
    """

    tensor: str
    sqnr: float
    cosine: float
    max_error: float
    peak: float
    elements: int
    is_output: bool

    @property
    def equal(self) -> bool:
        return self.max_error == 0


@dataclass(frozen=True)
class Comparison:
    """Rows are the tensors that both models have, worst first; a table as text, or data (`to_dict`)."""

    rows: tuple[Difference, ...]
    batches: int

    @property
    def outputs(self) -> tuple[Difference, ...]:
        return tuple(row for row in self.rows if row.is_output)

    @property
    def equal(self) -> bool:
        """Whether the outputs are."""
        return all(row.equal for row in self.outputs)

    def to_dict(self) -> dict[str, Any]:
        return {"batches": self.batches, "tensors": [asdict(row) for row in self.rows]}

    def to_json(self) -> str:
        """Numbers that JSON has no word for are null (NaN) and ±1e999 (infinite), which readers take back."""
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False)
        return text.replace("Infinity", "1e999").replace(": NaN", ": null")

    def __str__(self) -> str:
        head = ("tensor", "SQNR dB", "cosine", "max error", "of peak")
        lines = [head, *((_named(r), f"{r.sqnr:.2f}", f"{r.cosine:.6f}", f"{r.max_error:.3g}", f"{r.peak:.3g}")
                         for r in self.rows)]  # fmt: skip
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        return "\n".join(
            "  ".join(
                [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
            )
            for line in lines
        )


def _named(row: Difference) -> str:
    return f"{row.tensor} (output)" if row.is_output else row.tensor


class _Sums:
    def __init__(self) -> None:
        self.aa = self.bb = self.ab = self.errors = 0.0
        self.max_error = self.peak = 0.0
        self.elements = 0

    def add(self, a: Array, b: Array) -> None:
        a, b = a.astype(np.float64).reshape(-1), b.astype(np.float64).reshape(-1)
        self.elements += a.size
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        odd = ~np.isfinite(a) | ~np.isfinite(b)
        if (odd & ~same).any():
            self.max_error = math.inf
        a, b = a[~odd], b[~odd]
        if a.size == 0:
            return
        error = a - b
        self.aa += float(a @ a)
        self.bb += float(b @ b)
        self.ab += float(a @ b)
        self.errors += float(error @ error)
        self.max_error = max(self.max_error, float(np.abs(error).max()))
        self.peak = max(self.peak, float(np.abs(a).max()))

    def difference(self, tensor: str, is_output: bool) -> Difference:
        if self.max_error == 0:
            sqnr, cosine = math.inf, 1.0
        elif math.isinf(self.max_error):
            sqnr, cosine = -math.inf, math.nan
        else:
            sqnr = 10 * math.log10(self.aa / self.errors) if self.aa and self.errors else -math.inf
            norm = math.sqrt(self.aa) * math.sqrt(self.bb)
            cosine = self.ab / norm if norm else 0.0
        return Difference(tensor, sqnr, cosine, self.max_error, self.peak, self.elements, is_output)


def compared(
    pairs: Iterable[tuple[dict[str, Array], dict[str, Array]]], outputs: Iterable[str]
) -> Comparison:
    """Of the values of each batch, by tensor: (reference, other). ShapeError: a tensor has two shapes."""
    sums: dict[str, _Sums] = {}
    batches = 0
    for one, other in pairs:
        batches += 1
        for tensor in one.keys() & other.keys():
            a, b = np.asarray(one[tensor]), np.asarray(other[tensor])
            if a.shape != b.shape:
                raise ShapeError(
                    f"{tensor} of the other model, shape", b.shape, f"{a.shape}, as in the reference"
                )
            sums.setdefault(tensor, _Sums()).add(a, b)
    names = set(outputs)
    rows = [found.difference(tensor, tensor in names) for tensor, found in sums.items()]
    return Comparison(tuple(sorted(rows, key=lambda row: (row.sqnr, row.tensor))), batches)
