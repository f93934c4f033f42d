"""Arrays that do not lie in order: every call gives what it gives on a copy that does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockscale.numerics import native
from blockscale.numerics.arrays import TENSOR_DTYPES
from blockscale.numerics.layout import bind
from blockscale.numerics.scheme import refined, scheme_named
from conformance.core_cases import same_bits
from numerics.moving import tensor

SHAPE = (6, 70, 33)
VIEWS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "backward": lambda x: np.ascontiguousarray(x[::-1])[::-1],
    "all backward": lambda x: np.ascontiguousarray(x[::-1, ::-1, ::-1])[::-1, ::-1, ::-1],
    "backward and transposed": lambda x: np.ascontiguousarray(x.T[:, ::-1])[:, ::-1].T,
    "every other": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "every other, backward": lambda x: np.repeat(x[:, ::-1], 2, axis=1)[:, ::-2],
    "unaligned": lambda x: _unaligned(x),
}
SCHEMES = {
    "mxfp4": {}, "mxfp4, axis 1": {"axis": 1}, "mxint8": {"axis": 0}, "int8-channel": {"axis": 0}, "nvfp4": {},
    "mxfp6": {"axis": 1, "rounding": "stochastic"}, "uint4-g32": {},
}  # fmt: skip


def _unaligned(x: Any) -> Any:
    memory = np.empty(x.nbytes + 1, np.uint8)
    view = memory[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


@pytest.mark.parametrize("kind", TENSOR_DTYPES)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_any_strides(scheme: str, view: str, kind: str) -> None:
    with np.errstate(over="ignore"):
        x = tensor(3, SHAPE).astype(TENSOR_DTYPES[kind])
    seen = VIEWS[view](x)
    assert seen.flags.c_contiguous == (view == "unaligned") and same_bits(seen, x).all()
    layout = bind(refined(scheme_named(scheme.partition(",")[0]), **SCHEMES[scheme]), SHAPE)
    wanted = native.fake_quantize(x, layout, seed=5)
    assert same_bits(native.fake_quantize(seen, layout, seed=5), wanted).all()
    out = VIEWS[view](np.zeros_like(x))
    assert native.fake_quantize(x, layout, seed=5, out=out) is out
    assert same_bits(out, wanted).all()
    assert native.fake_quantize(seen, layout, seed=5, out=seen) is seen
    assert same_bits(seen, wanted).all()
    codes, stored = native.quantize(x, layout, seed=5)
    others, also = native.quantize(VIEWS[view](x), layout, seed=5)
    assert np.array_equal(codes, others) and same_bits(stored.scales, also.scales).all()
    values = VIEWS[view](np.zeros_like(x))
    native.dequantize(codes, layout, stored, kind, out=values)
    assert same_bits(values, native.dequantize(codes, layout, stored, kind)).all()


def test_a_view_backward_is_not_copied() -> None:
    """The core is given the memory itself."""
    x = tensor(0, (4, 32))[::-1, ::-1]
    assert native._input(x, bind(scheme_named("mxfp4"), x.shape)) is x
