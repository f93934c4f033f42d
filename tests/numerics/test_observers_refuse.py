"""What observers refuse, and in which words."""

from __future__ import annotations

import math

import numpy as np
import pytest

from blockscale.errors import (
    ArgumentError,
    CalibrationError,
    CombinationError,
    DtypeError,
    UnknownNameError,
)
from blockscale.numerics.arrays import TENSOR_DTYPES
from blockscale.numerics.layout import Layout
from blockscale.numerics.observers import METHODS, observer
from blockscale.numerics.scheme import Scheme, numbers_named, scheme_named
from numerics.observing import (
    F32,
    as_dtype,
    assert_same_params,
    data,
    params,
    seen,
)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", TENSOR_DTYPES)
def test_not_finite_names_tensor_batch_and_place(method: str, bad: float, dtype: str) -> None:
    for name in ("int8", "uint8-channel", "nvfp4", "int4-g32"):
        if (method, name) == ("entropy", "nvfp4"):
            continue
        o = observer(method, scheme_named(name), name="layers.0.q_proj.input")
        good = as_dtype(data("normal", (4, 70)), dtype)
        o.update(good)
        x = good.copy()
        x[2, 69] = bad
        with pytest.raises(CalibrationError, match=r"'layers\.0\.q_proj\.input', batch 2.*at \(2, 69\)"):
            o.update(x)
        assert_same_params(o.finish(), params(method, scheme_named(name), good))  # as if it had not been


@pytest.mark.parametrize("method", METHODS)
def test_nothing_seen(method: str) -> None:
    with pytest.raises(CalibrationError, match=r"'x' has seen no batch.*calibration set.*MX"):
        params(method, scheme_named("int8"))
    with pytest.raises(CalibrationError, match="2 batches without elements"):
        params(method, scheme_named("int8"), np.ones((0, 3), F32), np.ones((2, 0), F32))


def test_wrong_names() -> None:
    int8 = scheme_named("int8")
    with pytest.raises(UnknownNameError, match="did you mean 'percentile'"):
        observer("percentil", int8)
    with pytest.raises(UnknownNameError, match="did you mean 'averaging_constant'"):
        observer("moving_average", int8, averaging_const=0.1)
    with pytest.raises(ArgumentError, match="no options"):
        observer("minmax", int8, bins=64)
    with pytest.raises(CombinationError, match=r"'w'.*MX needs no calibration"):
        observer("minmax", scheme_named("mxfp4"), name="w")
    for method, option, values in (
        ("percentile", "percentile", (0, -1, 100.5, "99", True, math.nan)),
        ("percentile", "bins", (100, 8, 1 << 17, 64.0, True)),
        ("moving_average", "averaging_constant", (0, 1.5, math.nan)),
        ("mse", "grid", (0, 5000, 2.5)),
        ("mse", "sample", (0, 1 << 30)),
    ):
        for value in values:
            with pytest.raises(ArgumentError, match=option):
                observer(method, int8, **{option: value})


def test_entropy_refuses_what_has_no_levels() -> None:
    with pytest.raises(CombinationError, match="equal levels, which fp8_e4m3 has not"):
        observer("entropy", scheme_named("fp8_e4m3"))
    with pytest.raises(CombinationError, match="fp4_e2m1"):
        observer("entropy", scheme_named("nvfp4"))
    with pytest.raises(CombinationError, match="at least 8192 for 2048 levels"):
        observer("entropy", scheme_named("int12"))
    observer("entropy", scheme_named("int12"), bins=8192)


def test_shapes_that_do_not_fit() -> None:
    o = seen("minmax", scheme_named("int8-token"), np.ones((4, 8), F32))
    with pytest.raises(
        CalibrationError, match=r"'x', batch 2 .*\(5, 8\).*each index of dimension 0 has 4 of them"
    ):
        o.update(np.ones((5, 8), F32))
    o.update(np.ones((4, 9), F32))
    o = seen("minmax", scheme_named("int8-g32"), np.ones((4, 64), F32))
    o.update(np.ones((4, 40), F32))  # two groups as before
    with pytest.raises(CalibrationError, match="each 32 indices of dimension 1"):
        o.update(np.ones((4, 65), F32))
    with pytest.raises(CalibrationError, match="2 dimensions are wanted"):
        o.update(np.ones((1, 4, 64), F32))
    layout = Layout(numbers_named("int8"), (4, 8), (1, 0))
    with pytest.raises(CalibrationError, match=r"batch 1 .*dimension 0"):
        seen("minmax", layout, np.ones((3, 8), F32))
    with pytest.raises(CalibrationError, match="2 dimensions are wanted"):
        seen("minmax", layout, np.ones((4,), F32))
    third = Scheme(element="int8", scale="f32", axis=2, block=1, others=0)
    with pytest.raises(CalibrationError, match="batch 1: axis"):
        seen("minmax", third, np.ones((3, 3), F32))
    nvfp4 = seen("minmax", scheme_named("nvfp4"), np.ones((4, 8), F32), np.ones((2, 3, 32), F32) * 2)
    assert nvfp4.finish().tensor_scale == F32(2 / 2688)  # one scale for any shape


def test_wrong_arrays() -> None:
    for x in (np.ones(3), np.ones(3, np.int32), [1.0]):
        with pytest.raises(DtypeError, match="cast it first"):
            seen("minmax", scheme_named("int8"), x)
    with pytest.raises(DtypeError, match="as in the batches before"):
        seen("minmax", scheme_named("int8"), np.ones(3, F32), np.ones(3, np.float16))


def test_too_many_bins() -> None:
    x = np.ones((1 << 14, 8), F32)
    with pytest.raises(CombinationError, match="fewer bins"):
        seen("percentile", scheme_named("int8-channel"), x, bins=1 << 14)


def test_merges_that_have_no_law() -> None:
    x = np.ones((2, 3), F32)
    int8 = scheme_named("int8")
    for method in ("moving_average", "mse"):
        with pytest.raises(CombinationError, match="do not merge"):
            seen(method, int8, x).merge(seen(method, int8, x))
    a = seen("percentile", int8, x)
    for other in (seen("minmax", int8, x), seen("percentile", int8, x, bins=64), seen(
            "percentile", scheme_named("int8-channel"), x)):  # fmt: skip
        with pytest.raises(CombinationError, match="one method, scheme and options"):
            a.merge(other)
    channel = scheme_named("int8-channel")
    with pytest.raises(CalibrationError, match="do not fit"):
        seen("minmax", channel, x).merge(seen("minmax", channel, np.ones((3, 3), F32)))
    with pytest.raises(DtypeError):
        seen("minmax", int8, x).merge(seen("minmax", int8, x.astype(np.float16)))
