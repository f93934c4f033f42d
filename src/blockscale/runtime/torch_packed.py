"""Weights as the products want them (core/packed_weight.h), made of codes at first use and kept beside them.

What is packed belongs to a tensor of codes: it goes when the tensor goes, and is made again when the tensor or
its scales were written to (torch counts that) or others are given. It is in no state_dict, no file and no
pickle; a copy of the codes is packed on its own. Many threads may ask at once.

Tensors made in inference mode count no writes, so theirs is made at every call; `blockscale.targets.torch` makes none.
"""

from __future__ import annotations

import os
import threading
import weakref
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from blockscale.graph.fused_fields import Fields
from blockscale.numerics import native
from blockscale.numerics.layout import Layout
from blockscale.numerics.scheme import numbers_named
from blockscale.runtime import torch_cpu
from blockscale.runtime.torch_bound import Bound, bound_to, check_codes, checked_params
from blockscale.runtime.torch_fused_fields import edge_of, shape_of

_BLOCK = 32  # along K, of the kernels
_HALF = 16  # with scales of fp8_e4m3


class Packed:
    """A weight of n columns that take k numbers each; `kernel` is None where there is none for its layout."""

    def __init__(self, codes: Tensor, fields: Fields, transposed: bool) -> None:
        self.kernel: Any = None
        self.n = self.k = 0
        self._state = _state(codes, fields)
        self._settings = fields[2:]
        shape = shape_of(codes, fields)
        numbers, block, *params = edge_of(fields, shape, quantizes=False)
        bound = bound_to(numbers, tuple(shape), tuple(block))
        check_codes(codes, bound)
        given = checked_params(bound, codes.device, *params)
        if has_kernel(bound.layout, transposed):
            self.n, self.k = shape[::-1] if transposed else shape
            self.kernel = _packed(codes, bound, torch_cpu.given_params(bound, given), transposed)

    def is_of(self, codes: Tensor, fields: Fields) -> bool:
        """Whether the tensors and settings that it was made of are still as they were."""
        return fields[2:] == self._settings and _state(codes, fields) == self._state


def has_kernel(layout: Layout, transposed: bool) -> bool:
    """For a weight of this layout, [N, K], or [K, N] if transposed."""
    if layout.rank != 2 or 0 in layout.shape or layout.numbers.element_format.bits > 8:
        return False
    along = 0 if transposed else 1
    block, length = layout.block[along], layout.shape[along]
    halves = layout.numbers.scale == "fp8_e4m3" and block == _HALF
    return block == 0 or block >= length or block % _BLOCK == 0 or halves


def _packed(codes: Tensor, bound: Bound, params: Any, transposed: bool) -> Any:
    native.require_isa()
    turn = -1 if transposed else 1
    n, k = bound.layout.shape[::turn]
    block_n, block_k = bound.layout.block[::turn]
    codes = torch_cpu.aligned(codes.contiguous())
    return native.CoreWeight(
        core_numbers(str(bound.numbers)), transposed, n, k, block_n, block_k, codes.data_ptr(), codes.nbytes,
        params, torch_cpu.HOST, torch.get_num_threads(),
    )  # fmt: skip


@lru_cache(maxsize=4096)
def core_numbers(numbers: str) -> Any:
    return native.core_numbers(numbers_named(numbers))


def _state(codes: Tensor, fields: Fields) -> tuple[int, ...] | None:
    """Changes when one of the tensors is written to; None for tensors that count no writes."""
    scale, zero_point = fields.scale, fields.zero_point
    if codes.is_inference() or scale.is_inference():
        return None
    state = codes.data_ptr(), codes._version, scale.data_ptr(), scale._version
    if zero_point is None:
        return state
    return None if zero_point.is_inference() else (*state, zero_point.data_ptr(), zero_point._version)


# ------------------------------------------------------------------------------- what is kept

Key = tuple[int, int, int, bool]

# By the identities of codes, scale and zero point; what is beside it watches over their end.
_kept: dict[Key, tuple[Packed, tuple[Any, ...]]] = {}
_lock = threading.RLock()


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)


def found(codes: Tensor, fields: Fields, transposed: bool) -> Packed | None:
    """What `packed` would give, if it is there."""
    held = _kept.get((id(codes), id(fields.scale), id(fields.zero_point), transposed))
    return held[0] if held is not None and held[0].is_of(codes, fields) else None


def packed(codes: Tensor, fields: Fields, transposed: bool) -> Packed:
    """The weight with these codes and fields, [N, K], or [K, N] if transposed."""
    if _state(codes, fields) is None:
        return Packed(codes, fields, transposed)
    with _lock:
        held = found(codes, fields, transposed)
        if held is None:
            key = id(codes), id(fields.scale), id(fields.zero_point), transposed
            held = Packed(codes, fields, transposed)
            _kept[key] = held, _watched(key, codes, fields)
        return held


def _watched(key: Key, codes: Tensor, fields: Fields) -> tuple[Any, ...]:
    tensors = [one for one in (codes, fields.scale, fields.zero_point) if one is not None]
    return tuple(weakref.ref(one, lambda _: _kept.pop(key, None)) for one in tensors)


def kept() -> list[Packed]:
    """All that there are now."""
    return [one for one, _ in list(_kept.values())]
