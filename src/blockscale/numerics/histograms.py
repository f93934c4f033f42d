"""Histograms that grow with their data, one for each group, and the ranges chosen from them.

A bin of width w = 2^e holds k·w ≤ x < (k + 1)·w, k = -half … half - 1. When the largest magnitude
outgrows the bins, e grows and 2, 4, … neighbours become one: edges stay where edges were. So counts
are exact whatever the order of the data, and merging is adding. What is not kept is where in its bin
an element lies: between half / 2 and half bins cover [0, amax], so w ≤ amax · 2 / half.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Self

import numpy as np

from blockscale.numerics.arrays import Array

_CHUNK = 1 << 20  # elements in the working memory of one step


class Histogram:
    """counts[group, half + k] elements in bin k; the width of a bin is 2^exponent[group]."""

    def __init__(self, groups: int, bins: int) -> None:
        self.half = bins // 2
        self.counts = np.zeros((groups, bins), np.int64)
        self.exponent = self._exponents(np.zeros(groups))

    @property
    def width(self) -> Array:
        return np.ldexp(1.0, self.exponent)

    def _exponents(self, amax: Array) -> Array:
        """Least e with amax < half · 2^e; that of 2^-149 for smaller ones."""
        exponent = np.frexp(np.maximum(amax.astype(np.float64), 2.0**-149))[1]
        return (exponent - (self.half.bit_length() - 1)).astype(np.int32)

    def add(self, values: Array, amax: Array) -> None:
        """values [groups, n] float32, NaN where a short block has no element; amax [groups] of them."""
        self._widen(np.maximum(self.exponent, self._exponents(amax)))
        bins = self.counts.shape[1]
        step = max(1, _CHUNK // max(values.shape[1], bins))
        for start in range(0, len(values), step):
            rows = slice(start, start + step)
            counts = self.counts[rows]
            for column in range(0, values.shape[1], _CHUNK):
                part = values[rows, column : column + _CHUNK].astype(np.float64)
                k = np.floor(np.ldexp(part, -self.exponent[rows, None])) + self.half
                k += np.arange(len(part))[:, None] * bins
                index = k[~np.isnan(k)].astype(np.int64)
                counts += np.bincount(index, minlength=counts.size).reshape(counts.shape)

    def merge(self, other: Self) -> None:
        exponent = np.maximum(self.exponent, other.exponent)
        theirs = Histogram(0, self.counts.shape[1])
        theirs.counts, theirs.exponent = other.counts.copy(), other.exponent
        theirs._widen(exponent)
        self._widen(exponent)
        self.counts += theirs.counts

    def copy_of(self, other: Self) -> None:
        self.counts, self.exponent = other.counts.copy(), other.exponent.copy()

    def _widen(self, exponent: Array) -> None:
        # with bins of half · w only the sign of an element counts, and wider ones change nothing
        growth = np.minimum(exponent - self.exponent, self.half.bit_length() - 1)
        for g in np.unique(growth[growth > 0]):
            rows = growth == g
            bins = self.counts.shape[1] >> g
            merged = self.counts[rows].reshape(-1, bins, 1 << g).sum(-1)
            wide = np.zeros((len(merged), self.counts.shape[1]), np.int64)
            wide[:, self.half - bins // 2 : self.half + bins // 2] = merged
            self.counts[rows] = wide
        self.exponent = exponent

    def magnitudes(self) -> Array:
        """[groups, half] elements with k·w ≤ |x| ≤ (k + 1)·w."""
        return self.counts[:, self.half :] + self.counts[:, self.half - 1 :: -1]


# -------------------------------------------------------------------------------- percentile


def symmetric_percentile(histogram: Histogram, percent: float) -> Array:
    """t [groups]: the upper edge of the bin of the ceil(n · percent / 100)-th smallest magnitude."""
    magnitudes = histogram.magnitudes()
    wanted = _wanted(magnitudes.sum(-1), Fraction(str(percent)) / 100)
    return (_bin_of(magnitudes, wanted) + 1) * histogram.width


def two_sided_percentile(histogram: Histogram, percent: float) -> tuple[Array, Array]:
    """(low, high): outer edges of the bins of the ceil(n · share)-th smallest and largest element,
    counted from the other end; share = 1 - (1 - percent / 100) / 2, so that each side loses half.
    """
    counts, half = histogram.counts, histogram.half
    wanted = _wanted(counts.sum(-1), (1 + Fraction(str(percent)) / 100) / 2)
    high = _bin_of(counts, wanted) + 1 - half
    low = half - _bin_of(counts[:, ::-1], wanted) - 1
    return low * histogram.width, high * histogram.width


def _wanted(totals: Array, share: Fraction) -> Array:
    """ceil(total · share), exactly."""
    unique, inverse = np.unique(totals, return_inverse=True)
    wanted = [-(-int(n) * share.numerator // share.denominator) for n in unique]
    return np.array(wanted, np.int64)[inverse]


def _bin_of(counts: Array, wanted: Array) -> Array:
    """Index of the bin that holds the wanted-th element of each row (1 is the first)."""
    return np.argmax(np.cumsum(counts, -1) >= np.maximum(wanted, 1)[:, None], -1)


# -------------------------------------------------------------------------------- entropy


def least_divergence(counts: Array, center: int, levels: int) -> int:
    """Of the windows |k| < i around `center`, the i whose counts survive `levels` levels best.

    Only windows that hold half of the elements are looked at, and that have a bin for each level. Of those
    within 1e-9 of the least divergence the widest: nothing is clipped without a gain.
    """
    used = np.flatnonzero(counts)
    if not len(used):
        return 1
    first, last = min(int(used[0]), center), max(int(used[-1]) + 1, center)
    reach = np.arange(1, max(center - first, last - center) + 1)
    starts, stops = np.maximum(center - reach, first), np.minimum(center + reach, last)
    below = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    fits = stops - starts >= max(levels, 2)  # a smaller window loses nothing by its levels
    fits &= 2 * (below[stops] - below[starts]) >= below[-1]
    if not fits.any():
        return int(reach[-1])
    divergence = divergences(counts, starts[fits], stops[fits], levels)
    near = np.flatnonzero(divergence <= divergence.min() + 1e-9)
    return int(reach[fits][near[-1]])


def divergences(counts: Array, starts: Array, stops: Array, levels: int) -> Array:
    """KL(P ‖ Q) of each window [start, stop) of bins, in nats.

    P is the window with what lies outside added to its first and last bin. Q is the window cut into
    `levels` equal levels (bin j of m is in level j · levels // m), each spread evenly over its bins
    where P is not 0; a level that holds nothing but what lies outside counts as one element. Both are
    normalised. From running sums: O(levels) a window.
    """
    edge = np.zeros(1, np.int64)
    below = np.concatenate([edge, np.cumsum(counts)])
    filled = np.concatenate([edge, np.cumsum(counts > 0)])
    n_log_n = np.concatenate([edge, np.cumsum(_n_log_n(counts))])
    n = below[-1]
    result = np.empty(len(starts))
    step = max(1, _CHUNK // (levels + 1))
    for at in range(0, len(starts), step):
        a, b = starts[at : at + step], stops[at : at + step]
        left, right = below[a], n - below[b]
        edges = a[:, None] - (-np.arange(levels + 1) * (b - a)[:, None] // levels)
        q = np.diff(below[edges])
        p, spread = q.copy(), np.diff(filled[edges])
        p[:, 0] += left
        p[:, -1] += right
        q = np.where(p > 0, np.maximum(q, 1), 0)
        spread[:, 0] += (counts[a] == 0) & (left > 0)
        spread[:, -1] += (counts[b - 1] == 0) & (right > 0)
        crossed = (p * np.log(np.maximum(q, 1) / np.maximum(spread, 1))).sum(-1)
        own = n_log_n[b] - n_log_n[a]
        own += _n_log_n(counts[a] + left) - _n_log_n(counts[a])
        own += _n_log_n(counts[b - 1] + right) - _n_log_n(counts[b - 1])
        result[at : at + step] = (own - crossed) / n - np.log(n) + np.log(q.sum(-1))
    return result


def _n_log_n(n: Array) -> Array:
    return n * np.log(np.maximum(n, 1))
