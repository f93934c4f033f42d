"""Attacks on what takes input from outside, each made from bytes: the same bytes, the same attack.

A refusal by name is right, a result is right; anything else that is raised, a byte written outside the
memory that was handed over, or a crash is a find. hypothesis (tests/test_fuzz.py) and atheris
(tools/fuzz.py) make the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import blockscale as bs
from blockscale.errors import BlockscaleError, FileError
from blockscale.numerics import native
from blockscale.numerics.dialects import ROUNDINGS, RULES
from blockscale.numerics.layout import Layout
from blockscale.numerics.scheme import PRESETS, Scheme, scheme_named
from blockscale.report.checkpoint import recognized
from blockscale.report.safetensors import read_header
from fuzzing.memory import Fenced

DIALECTS = ("ocp", "quark", "microxcaling", "torchao", "ggml")
NAMES = (
    *PRESETS,
    "mxfp8",
    "uint2-g3",
    "int16-token",
    "int7-channel",
    "fp8_e4m3-g16",
    "int12,zero_point=true",
)
STRANGE_NAMES = ("", "mxfp5", "int4-g0", "int4-", "int1", "mxfp4,", "mxfp4,rule", "mxfp4,axis=1", "\0", "é")
STRANGE_SIZES = (-1, -(1 << 63), 1 << 20, 1 << 31, 1 << 40, (1 << 59) - 1, 1 << 61, (1 << 63) - 1)
WIDTHS = (4, 2, 2)


class Choices:
    """Bytes as decisions; when they run out every decision is the first one."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def bytes(self, count: int) -> bytes:
        """The next ones, again and again: data for tensors."""
        seed = self._data[self._at : self._at + 64] or b"\0"
        self._at += 64
        return (seed * (count // len(seed) + 1))[:count]

    def below(self, count: int) -> int:
        return (self.byte() << 8 | self.byte()) % count

    def of(self, options: Sequence[Any]) -> Any:
        return options[self.below(len(options))]

    def rarely(self) -> bool:
        return self.byte() >= 248


# ------------------------------------------------------------------------------ the compiled core

REFUSALS = (ValueError, TypeError, OverflowError)  # the core's own; nanobind's where a number does not fit


def attack_core(data: bytes) -> None:
    """One call of a Plan, on memory that ends where a touch is a crash and begins after a canary."""
    c = Choices(data)
    scheme, shape = _scheme(c), _shape(c)
    block = [_block(c, n) for n in shape]
    numbers = native.core_numbers(scheme.numbers)
    if c.rarely():
        _spoil(c, numbers)
    try:
        plan = native._core.Plan(numbers, shape, block[: len(block) - c.rarely()])
    except REFUSALS:
        return
    sizes = plan.code_bytes, plan.scale_bytes, 4 * plan.scale_count
    if max(sizes) > Fenced.LARGEST or math.prod(shape) * 4 > Fenced.LARGEST:
        sizes = (64, 64, 64)  # too large to be handed over: these sizes must be refused
    _call(c, plan, scheme, shape, sizes)


def _call(c: Choices, plan: Any, scheme: Scheme, shape: list[int], sizes: tuple[int, int, int]) -> None:
    code_bytes, scale_bytes, zero_bytes = sizes
    kind = c.of((0, 1, 2)) if not c.rarely() else c.of((-1, 3, 99))
    x, y = _tensor(c, shape, kind), _tensor(c, shape, kind)
    if c.rarely():  # in place, or shifted
        y = (y[0], x[1], x[2] if c.byte() & 1 else y[2])
    codes = Fenced(c.bytes(_claimed(c, code_bytes)))
    scales = Fenced(c.bytes(_claimed(c, scale_bytes)))
    zeros = Fenced(c.bytes(_claimed(c, zero_bytes)))
    stored = native.CoreParams()
    stored.given = c.below(2) == 1
    stored.scales, stored.scale_bytes = scales.address, scales.size
    stored.zeros, stored.zero_bytes = zeros.address, zeros.size
    if scheme.tensor_scale and c.byte() & 1:
        stored.tensor_scale, stored.tensor_scale_given = c.of((1.0, 1e-45, 1e38, 0.0, -1.0, math.nan)), True
    host, threads = c.of((native.POOL, native.SERIAL, native.OPENMP, -7)), c.of((0, 1, 2, 3, -5, 1 << 30))
    seed = c.below(1 << 16)
    at = {"x": (x[1].address, x[1].size, kind, x[2]), "y": (y[1].address, y[1].size)}
    calls: tuple[Callable[[], Any], ...] = (
        lambda: plan.fake_quantize(*at["x"], *at["y"], y[2], stored, seed, host, threads),
        lambda: plan.quantize(*at["x"], codes.address, codes.size, stored, seed, host, threads),
        lambda: plan.dequantize(codes.address, codes.size, *at["y"], kind, y[2], stored, host, threads),
        lambda: plan.choose_params(*at["x"], stored, host, threads),
    )
    before = bytes(x[1].content())
    call = c.below(len(calls))
    try:
        calls[call]()
    except REFUSALS as error:
        assert str(error), "a refusal that says nothing"
    for part in (x[1], y[1], codes, scales, zeros):
        part.check()
    assert y[1] is x[1] or bytes(x[1].content()) == before, "the input was written"


def _scheme(c: Choices) -> Scheme:
    for _ in range(8):
        try:
            scheme = scheme_named(c.of(NAMES))
            changes = {"rule": c.of((None, *RULES)), "rounding": c.of((None, *ROUNDINGS))}
            changes["dialect"] = c.of((None, None, *DIALECTS))
            return bs.Scheme(**_fields(scheme) | {k: v for k, v in changes.items() if v})
        except BlockscaleError:
            continue
    return scheme_named("mxfp4")


def _fields(scheme: Scheme) -> dict[str, Any]:
    return {name: getattr(scheme, name) for name in scheme.__dataclass_fields__}


def _shape(c: Choices) -> list[int]:
    shape = [c.of((1, 2, 3, 31, 32, 33, 64, 65, 100, 7, 5, 0)) for _ in range(c.below(5))]
    if c.rarely():
        shape += [1] * c.of((3, 59, 62, 80))
    if shape and c.rarely():
        shape[c.below(len(shape))] = c.of(STRANGE_SIZES)
    return shape


def _block(c: Choices, size: int) -> int:
    return int(c.of(STRANGE_SIZES)) if c.rarely() else int(c.of((1, 0, 32, 16, 3, max(size, 0) // 2, 2 * 32)))


def _spoil(c: Choices, numbers: Any) -> None:
    """One field becomes what it should not be."""
    strange = {
        "element": ("e8m0", "f32", "", "int4", "fp4_e2m1"), "scale": ("int8", "f32", "e8m0", ""),
        "family": ("mx", "affine", "tensor_scaled", ""), "rule": ("amax", "mse", "symmetric", ""),
        "rounding": ("", "stochastic"), "nonfinite": ("", "pass"), "quant_min": (-(1 << 31), 0, 5),
        "quant_max": ((1 << 31) - 1, 0, -5), "least_scale": (-1, 127, 1 << 30), "int_low": (1, -129, 0),
        "zero_scale": (-1, 127), "zero_point": (True, False),
    }  # fmt: skip
    name = c.of(tuple(strange))
    setattr(numbers, name, c.of(strange[name]))


def _tensor(c: Choices, shape: list[int], kind: int) -> tuple[int, Fenced, list[int] | None]:
    """Kind, memory and strides; the memory is what the strides reach, or a little less."""
    width = WIDTHS[kind] if kind in (0, 1, 2) else 4
    strides: list[int] | None = None
    if c.byte() & 1:
        strides, step = [0] * len(shape), 1
        for i in sorted(range(len(shape)), key=lambda _: c.byte()):
            strides[i], step = step, step * max(shape[i], 1) + c.of((0, 0, 1, 5))
        if strides and c.rarely():
            strides[c.below(len(strides))] = c.of((0, *STRANGE_SIZES))
    if strides is None:
        reach = math.prod(shape)
    else:
        reach = 1 + sum(s * (n - 1) for s, n in zip(strides, shape, strict=True)) if 0 not in shape else 0
    bytes_ = reach * width if 0 <= reach * width <= Fenced.LARGEST else 256
    return kind, Fenced(c.bytes(_claimed(c, bytes_))), strides


def _claimed(c: Choices, size: int) -> int:
    return max(0, size - c.of((1, 2, 4, size))) if c.rarely() else size


# ---------------------------------------------------------------------------- the public functions

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16, np.float64, np.int32, np.bool_, object)


def attack_api(data: bytes) -> None:
    """quantize, dequantize, fake_quantize, choose_params with arguments of every sort on numpy arrays."""
    c = Choices(data)
    x = _array(c, _modest(c))
    layout = c.of(STRANGE_NAMES) if c.rarely() else c.of(NAMES)
    arguments: dict[str, Any] = {
        "axis": c.of((None, None, -1, 0, 1, 7, -9, (0, 1), (), (0, 0), 1 << 70)),
        "block": c.of((None, None, 1, 2, 32, 0, -3, (2, 3), (), 1 << 40, 1 << 70)),
        "rule": c.of((None, None, *RULES, "", "round")),
        "rounding": c.of((None, None, *ROUNDINGS, "even")),
        "dialect": c.of((None, None, *DIALECTS, "ieee")),
    }
    arguments = {name: value for name, value in arguments.items() if c.byte() >= 128}
    if c.byte() >= 192:
        arguments["tensor_scale"] = c.of((1.0, 0.0, -1.0, math.nan, math.inf, 1e-46, 1e300, np.float32(0.5)))
    given = {"seed": c.of((0, 1, (1 << 64) - 1, 1 << 64, -1))} if c.byte() >= 192 else {}
    if c.byte() >= 192:
        given["scale"] = c.of((0.5, 0.0, -1.0, math.nan, 0, 1 << 70, _array(c, _modest(c))))
    if c.byte() >= 224:
        given["zero_point"] = c.of((0, 1, -1000, 0.5, 1 << 40, math.nan, _array(c, _modest(c))))
    try:
        _public_calls(c, x, layout, arguments, given)
    except BlockscaleError as error:
        assert str(error), "a refusal that says nothing"


def _public_calls(c: Choices, x: Any, layout: str, arguments: Any, given: Any) -> None:
    what = c.below(3)
    if what == 0:
        out = c.of((None, x, np.empty(x.shape, np.float32), np.empty(3, np.float32)))
        result = bs.fake_quantize(x, layout, **arguments, **given, out=out)
        assert result.shape == x.shape and result.dtype == x.dtype
    elif what == 1:
        q = bs.quantize(x, layout, **arguments, **given)
        assert q.dequantize().shape == x.shape
        wrong = c.of((q.codes, q.codes.reshape(-1)[1:], q.codes.astype(np.int32), q.codes[None]))
        parts = {"scales": q.scales, "zero_points": q.zero_points, "tensor_scale": q.tensor_scale}
        again = bs.QuantizedTensor(codes=wrong, layout=q.layout, **parts)
        bs.dequantize(again, c.of(("float32", "float16", "bfloat16", "float64", None, 3)))
    else:
        bs.choose_params(x, layout, **arguments)
    Layout(scheme_named("int8").numbers, tuple(x.shape), tuple(_block(c, n) for n in x.shape))


def _modest(c: Choices) -> list[int]:
    return [c.of((1, 2, 3, 32, 33, 0)) for _ in range(c.below(4))]


def _array(c: Choices, shape: list[int]) -> Any:
    dtype = np.dtype(c.of(DTYPES) if c.rarely() else c.of(DTYPES[:3]))
    if dtype.hasobject:
        return np.zeros(shape, dtype)
    x = np.frombuffer(c.bytes(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)
    x = x.copy() if c.byte() & 1 else x  # else it is read-only
    return x.T if c.byte() & 1 else x[::-1] if shape and c.byte() & 1 else x


# ------------------------------------------------------------------------------------------- files


def attack_header(data: bytes, folder: Path) -> None:
    """`blockscale inspect` on any bytes behind an honest or a false length."""
    c = Choices(data[:1])
    text = data[1:]
    length = len(text) if c.byte() < 200 else int.from_bytes(text[:8], "little")
    path = folder / "fuzzed.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + text)
    try:
        entries, _ = read_header(path)
    except FileError:
        return
    for one in recognized(entries):
        assert one.bits_per_weight >= 0
