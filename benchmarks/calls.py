"""What one call costs, whatever the size of its tensor: fake_quantize of 32 numbers, and of 64 Ki.

From the bare core upwards: raw addresses, numpy arrays, torch operators. torch's own operators are beside.
"""

from __future__ import annotations

from functools import partial

import torch

from _measure import Run, duration, interleaved
from _ours import Codec, normal
from _report import Report
from blockscale.numerics import native
from blockscale.numerics.layout import bind
from blockscale.numerics.scheme import scheme_named
from blockscale.runtime import torch_ops

FEW = 5.0  # µs: "calls cost a few µs"
BARE = "torch.empty_like(x)"
PEER = "torch.fake_quantize_per_channel_affine"
OPERATOR = "torch.ops.blockscale.fake_quantize.default"


def cases_of(rows: int, columns: int) -> dict[str, Run]:
    x = normal(rows, columns)
    y = x.copy()
    codec = Codec("mxfp4", x, y)
    layout, scheme = codec.layout, scheme_named("mxfp4")
    numbers, block = str(layout.numbers), list(layout.block)
    stored_np = native.quantize(x, layout)

    t = torch.from_numpy(x).clone()
    out = torch.empty_like(t)
    codes, params = torch_ops.quantize(t, layout)
    integers = bind(scheme_named("int8-channel"), x.shape)
    _, given = torch_ops.quantize(t, integers)
    scale, zero = t.abs().amax(1) / 127, torch.zeros(rows, dtype=torch.int32)
    ours = torch.ops.blockscale
    tracked = t.clone().requires_grad_()
    return {
        "core, raw addresses": codec.fake_quantize(),
        "numpy: native.fake_quantize": partial(native.fake_quantize, x, layout),
        "numpy: native.fake_quantize, out=": partial(native.fake_quantize, x, layout, out=y),
        "numpy: native.quantize": partial(native.quantize, x, layout),
        "numpy: native.dequantize": partial(native.dequantize, stored_np[0], layout, stored_np[1]),
        OPERATOR: partial(ours.fake_quantize.default, t, numbers, block),
        "torch.ops.blockscale.fake_quantize": partial(ours.fake_quantize, t, numbers, block),
        "torch.ops.blockscale.fake_quantize, x requires grad": partial(
            ours.fake_quantize.default, tracked, numbers, block
        ),
        "torch.ops.blockscale.dynamic_quantize.default": partial(
            ours.dynamic_quantize.default, t, numbers, block
        ),
        "torch.ops.blockscale.dequantize.default": partial(
            ours.dequantize.default, codes, params.scales, None, None, numbers, list(x.shape), block,
            dtype=torch.float32,
        ),
        "torch_ops.fake_quantize": partial(torch_ops.fake_quantize, t, layout),
        "torch_ops.fake_quantize, a scheme": partial(torch_ops.fake_quantize, t, scheme),
        "torch_ops.fake_quantize, out=": partial(torch_ops.fake_quantize, t, layout, out=out),
        "torch_ops.fake_quantize int8-channel, scales given": partial(
            torch_ops.fake_quantize, t, integers, given
        ),
        "torch_ops.quantize": partial(torch_ops.quantize, t, layout),
        "torch_ops.dequantize": partial(torch_ops.dequantize, codes, layout, params),
        BARE: partial(torch.empty_like, t),
        "torch.abs(x)": partial(torch.abs, t),
        PEER: partial(torch.fake_quantize_per_channel_affine, t, scale, zero, 0, -128, 127),
    }  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    report = Report("Calls", " ".join(str(__doc__).split()), argv)
    torch.set_num_threads(1)
    for rows, columns in ((1, 32), (16, 4096)):
        where = f"{rows} × {columns}"
        with torch.no_grad():
            cases = cases_of(rows, columns)
        times = interleaved(cases, seconds=report.seconds(0.5), least=10, most=2000)
        report.keep(where, times)
        table = []
        for name, found in times.items():
            bar = ""
            if name == OPERATOR and rows == 1:
                bar = report.bar(f"{name}, {where}", found.best * 1e6, "≤", FEW, " µs")
            ratios = [f"{found.best / times[other].best:.2f}" for other in (BARE, PEER)]
            table.append([name, duration(found.best), found.spread, *ratios, bar])
        header = ("call", "best", "median (quartiles)", f"× {BARE}", f"× {PEER}", "bar")
        report.table(f"float32, {where}, one thread", header, table, "mxfp4 where nothing else is said.")
    report.close()


if __name__ == "__main__":
    main()
