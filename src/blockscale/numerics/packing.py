"""Codes as bytes. A row (last dimension) is one little-endian bit stream, `bits` a code, padded with
zero bits to a whole byte: two 4-bit codes a byte with the even one low, four 6-bit codes in three.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blockscale.numerics.formats import Format

Codes = np.ndarray[Any, np.dtype[Any]]


def pack(codes: Codes, element: Format) -> Codes:
    """Integer codes [..., K] (signed or bit patterns) → storage [..., ceil(K · bits / 8)]."""
    if not element.packed or codes.ndim == 0:
        mask = (1 << element.bits) - 1
        if element.is_fixed:
            return codes.astype(element.storage_dtype) if element.bits >= 8 else _byte(codes, mask)
        return _byte(codes, mask)
    shifts = np.arange(element.bits, dtype=np.int64)
    bits = (codes.astype(np.int64)[..., None] >> shifts) & 1
    stream = bits.astype(np.uint8).reshape(*codes.shape[:-1], codes.shape[-1] * element.bits)
    return np.packbits(stream, axis=-1, bitorder="little")


def unpack(stored: Codes, element: Format, length: int) -> Codes:
    """The inverse of `pack`: int64 bit patterns, or signed values of fixed formats."""
    if not element.packed or stored.ndim == 0:
        patterns = stored.astype(np.int64) & ((1 << element.bits) - 1)
    else:
        stream = np.unpackbits(stored, axis=-1, count=length * element.bits, bitorder="little")
        bits = stream.reshape(*stored.shape[:-1], length, element.bits).astype(np.int64)
        patterns = bits @ (1 << np.arange(element.bits, dtype=np.int64))
    if element.is_fixed and element.signed:
        sign = 1 << (element.bits - 1)
        return np.asarray((patterns ^ sign) - sign)
    return patterns


def _byte(codes: Codes, mask: int) -> Codes:
    return np.asarray(codes.astype(np.int64) & mask).astype(np.uint8)  # of rank 0 an array too, no scalar
