"""A quick look at the codec's speed, beside a copy of the same memory in the same run.

The thorough one, with peers and statistics, is `make bench`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from blockscale.numerics import native
from blockscale.numerics.layout import Layout, bind
from blockscale.numerics.scheme import scheme_named

PLACES = {"cache": 1 << 20, "memory": 64 << 20}  # bytes of float32 in; a MiB stays in the cache of a core
FORMATS = ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4", "mxint8", "nvfp4", "int8-channel",
           "int4-g32")  # fmt: skip
Array = np.ndarray[Any, np.dtype[Any]]


def codec(
    formats: tuple[str, ...] = FORMATS, threads: tuple[int, ...] = (1, 2), seconds: float = 0.05
) -> Iterator[dict[str, Any]]:
    """One row a format, place and thread count: `seconds` of each measurement, the best pass counts.

    copy_ratio: time / time of numpy's copy of the input, on one thread, measured right before.
    """
    for place, size in PLACES.items():
        x = np.random.default_rng(0).standard_normal((size // 4 // 1024, 1024)).astype(np.float32)
        y = np.empty_like(x)
        copying = partial(np.copyto, y, x)
        for name in formats:
            layout = bind(scheme_named(name), x.shape)
            work = _work(layout, x, y)
            for count in threads:
                copy = _best(copying, seconds)
                row: dict[str, Any] = {"format": name, "place": place, "bytes": size, "threads": count}
                for what, run in work.items():
                    took = _best(partial(run, count), seconds)
                    row[what] = {"elements_per_second": x.size / took, "copy_ratio": took / copy}
                row["copy"] = {"elements_per_second": x.size / copy}
                yield row


def _work(layout: Layout, x: Array, y: Array) -> dict[str, Callable[[int], Any]]:
    """The operations as calls of the core on memory that is there, with a number of threads."""
    plan = native.plan_of(layout)
    codes, params = native.quantize(x, layout)
    chosen, given = native.CoreParams(), native.CoreParams()
    room = native.Stored(params.scales.copy(), params.zero_points, params.tensor_scale)
    for core, stored in ((chosen, room), (given, params)):
        core.scales, core.scale_bytes = stored.scales.ctypes.data, stored.scales.nbytes
        if stored.zero_points is not None:
            core.zeros, core.zero_bytes = stored.zero_points.ctypes.data, stored.zero_points.nbytes
        core.keep = stored, codes  # both hold mere addresses
    given.given = True
    if params.tensor_scale is not None:
        given.tensor_scale, given.tensor_scale_given = float(params.tensor_scale), True
    x_at = (x.ctypes.data, x.nbytes, native.TYPE_INDEX["f32"], None)
    codes_at = (codes.ctypes.data, codes.nbytes)
    y_at = (y.ctypes.data, y.nbytes)
    nothing = native.CoreParams()
    return {
        "fake_quantize": lambda n: plan.fake_quantize(*x_at, *y_at, None, nothing, 0, native.POOL, n),
        "quantize": lambda n: plan.quantize(*x_at, *codes_at, chosen, 0, native.POOL, n),
        "dequantize": lambda n: plan.dequantize(
            *codes_at, *y_at, native.TYPE_INDEX["f32"], None, given, native.POOL, n
        ),
    }


def _best(run: Callable[[], Any], seconds: float) -> float:
    """Least time of a call, of as many as fit into `seconds` (at least 3)."""
    run()
    best, calls, end = float("inf"), 0, time.perf_counter() + seconds
    while calls < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
        calls += 1
    return best
