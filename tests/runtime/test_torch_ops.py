"""The torch operators: the bits of the core and of the reference, any memory, threads, bad input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from blockscale import errors
from blockscale.numerics import native
from blockscale.numerics.layout import Layout, bind
from blockscale.numerics.scheme import Numbers, numbers_named, scheme_named
from blockscale.runtime import torch_cpu, torch_ops, torch_reference
from conformance.core_cases import PLACES, all_numbers, data_for, placed, same_bits, thinned
from runtime.torch_cases import Array, disordered, equal, to_numpy, to_torch

ops = torch.ops.blockscale
FORMATS = ("f32", "bf16", "f16")


@pytest.fixture(autouse=True)
def torch_settings() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)


def cases(step: int, start: int = 0) -> Iterator[tuple[Layout, Array, int]]:
    for i, numbers in enumerate(thinned(all_numbers())):
        if i % step == start:
            shape, block = PLACES[i // step % len(PLACES)]
            layout = placed(numbers, shape, block)
            yield layout, trouble(numbers, shape, FORMATS[i // 7 % 3], i), i


def trouble(numbers: Numbers, shape: tuple[int, ...], tensor_format: str, seed: int) -> Array:
    with np.errstate(all="ignore"):  # numpy warns of NaN on its way to bfloat16
        return data_for(numbers, shape, tensor_format, seed)


def test_operators_know_numbers_by_their_spelling() -> None:
    assert all(numbers_named(str(numbers)) == numbers for numbers in all_numbers())


def shown(layout: Layout) -> str:
    return f"{layout.numbers} {layout.shape} {layout.block}"


@pytest.mark.parametrize("part", range(4))
def test_bits_of_the_core(part: int) -> None:
    for layout, x, seed in cases(16, 4 * part):
        t = to_torch(x)
        got = torch_ops.fake_quantize(t, layout, seed=seed)
        assert same_bits(to_numpy(got), native.fake_quantize(x, layout, seed=seed)).all(), shown(layout)
        if layout.numbers.why_no_codes:
            continue
        codes, stored = native.quantize(x, layout, seed=seed)
        got_codes, got_stored = torch_ops.quantize(t, layout, seed=seed)
        assert same_bits(to_numpy(got_codes), codes).all(), shown(layout)
        for name in ("scales", "zero_points", "tensor_scale"):
            one, other = getattr(got_stored, name), getattr(stored, name)
            assert (one is None) == (other is None)
            assert one is None or same_bits(to_numpy(one), other).all(), shown(layout)
        chosen = torch_ops.choose_params(t, layout)
        assert equal(chosen.scales, got_stored.scales)
        again, _ = torch_ops.quantize(t, layout, chosen, seed=seed)
        assert equal(again, got_codes)
        assert equal(torch_ops.fake_quantize(t, layout, chosen, seed=seed), got)
        for dtype in FORMATS:
            values = torch_ops.dequantize(codes=got_codes, layout=layout, params=chosen, dtype=dtype)
            assert same_bits(to_numpy(values), native.dequantize(codes, layout, stored, dtype)).all()


@pytest.mark.parametrize("part", range(8))
def test_bits_of_the_pure_path(part: int) -> None:
    """What other devices run, called on CPU tensors."""
    for layout, x, seed in cases(8, part):
        t = to_torch(x)
        place = str(layout.numbers), layout.block
        want = ops.fake_quantize(t, *place, seed=seed)
        assert equal(torch_reference.fake_quantize(t, *place, seed=seed), want), shown(layout)
        if layout.numbers.why_no_codes:
            continue
        codes, *stored = ops.dynamic_quantize(t, *place, seed=seed)
        got = torch_reference.dynamic_quantize(t, *place, seed=seed)
        assert all(map(equal, got, (codes, *stored))), shown(layout)
        assert all(map(equal, torch_reference.choose_params(t, *place), stored))
        assert equal(torch_reference.quantize(t, *place, *stored, seed=seed), codes)
        assert equal(torch_reference.fake_quantize(t, *place, *stored, seed=seed), want)
        arguments = (codes, *stored, place[0], list(layout.shape), place[1])
        values = ops.dequantize(*arguments, dtype=t.dtype)
        assert equal(torch_reference.dequantize(*arguments, dtype=t.dtype), values), shown(layout)


def test_by_way_of_the_cpu() -> None:
    """Devices without float64."""
    x, place = torch.randn(4, 64), ("mxfp4", [1, 32])
    want = ops.fake_quantize(x, *place)
    assert equal(torch_reference.by_way_of_cpu(torch_cpu.fake_quantize, (x, *place), {}), want)
    out = torch.empty_like(x)
    assert torch_reference.by_way_of_cpu(torch_cpu.fake_quantize_out, (x, *place), {"out": out}) is out
    assert equal(out, want)
    several = torch_reference.by_way_of_cpu(torch_cpu.dynamic_quantize, (x, *place), {"seed": 1})
    assert all(map(equal, several, ops.dynamic_quantize(x, *place)))


@pytest.mark.parametrize("name", ["mxfp4", "mxint8", "nvfp4", "uint8-channel", "int4-g32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_any_memory(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(6, 40, 3).to(dtype)
    layout = bind(scheme_named(name), x.shape)
    want = torch_ops.fake_quantize(x, layout)
    codes, stored = torch_ops.quantize(x, layout)
    for what, same in disordered(x):
        got = torch_ops.fake_quantize(same, layout)
        assert equal(got, want), what
        assert got.stride() == torch.empty_like(same).stride(), what
        assert equal(torch_ops.quantize(same, layout)[0], codes), what
        assert equal(torch_ops.choose_params(same, layout).scales, stored.scales), what
        with torch.no_grad():
            assert torch_ops.fake_quantize(same, layout, out=same) is same
        assert equal(same, want), what
    scattered = native.Stored(*(p if p is None else _in_disorder(p) for p in vars(stored).values()))
    assert equal(torch_ops.fake_quantize(x, layout, scattered), want)
    scattered_codes = codes.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert equal(torch_ops.dequantize(scattered_codes, layout, stored, dtype), want)


def _in_disorder(p: Tensor) -> Tensor:
    order = list(range(p.dim()))[::-1]
    return p.permute(order).contiguous().permute(order)


def test_expanded_input() -> None:
    x = torch.randn(5, 1, 40).expand(5, 7, 40)
    got = ops.fake_quantize(x, "mxfp6", [1, 1, 32])
    assert equal(got, ops.fake_quantize(x.contiguous(), "mxfp6", [1, 1, 32]))
    assert equal(torch_reference.fake_quantize(x, "mxfp6", [1, 1, 32]), got)


def test_out() -> None:
    layout = bind(scheme_named("mxfp8"), (4, 64))
    x = torch.randn(4, 64)
    want = torch_ops.fake_quantize(x, layout)
    for _, out in disordered(torch.zeros_like(x)):
        with torch.no_grad():
            version = out._version
            assert torch_ops.fake_quantize(x, layout, out=out) is out
            assert out._version > version
        assert equal(out, want)
    given = torch_ops.choose_params(x, layout)
    assert equal(torch_ops.fake_quantize(x, layout, given, out=torch.empty_like(x)), want)
    codes, stored = torch_ops.quantize(x, layout)
    half = torch.empty(64, 4, dtype=torch.float16).T
    assert torch_ops.dequantize(codes, layout, stored, out=half) is half
    assert equal(half, torch_ops.dequantize(codes, layout, stored, "f16"))
    with torch.inference_mode():
        assert equal(torch_ops.fake_quantize(x, layout, out=torch.empty_like(x)), want)


@pytest.mark.parametrize("shape", [(), (0,), (0, 32), (4, 0), (1,), (1, 1, 1)])
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "uint8", "int4-g32", "int12-channel"])
def test_smallest_shapes(shape: tuple[int, ...], name: str) -> None:
    x = torch.full(shape, 0.7)
    layout = bind(scheme_named(name), shape)
    codes, stored = torch_ops.quantize(x, layout)
    assert codes.shape == layout.codes_shape and stored.scales.shape == layout.scale_shape
    y = torch_ops.dequantize(codes, layout, stored)
    assert y.shape == shape and equal(y, torch_ops.fake_quantize(x, layout))
    place = str(layout.numbers), layout.block
    assert equal(torch_reference.fake_quantize(x, *place), y)
    again = torch_reference.dynamic_quantize(x, *place)
    assert all(map(equal, again, ops.dynamic_quantize(x, *place)))


def test_stored_dtypes() -> None:
    x = torch.randn(4, 32)
    for name, code, scale in (
        ("mxfp4", torch.uint8, torch.uint8), ("mxint8", torch.int8, torch.uint8),
        ("int8-channel", torch.int8, torch.float32), ("uint8,scale=bf16", torch.uint8, torch.bfloat16),
        ("int16,scale=f16", torch.int16, torch.float16), ("uint12", torch.uint16, torch.float32),
    ):  # fmt: skip
        codes, stored = torch_ops.quantize(x, bind(scheme_named(name), x.shape))
        assert (codes.dtype, stored.scales.dtype) == (code, scale), name
    *_, zeros, t = ops.dynamic_quantize(x, "nvfp4", [1, 16])
    assert zeros.shape == (0,) and t.shape == () and t.dtype is torch.float32


def test_scheme_and_layout_agree() -> None:
    x = torch.randn(3, 4, 70)
    for name in ("mxfp4", "nvfp4", "int8", "int8-channel", "uint8-token", "int4-g32"):
        scheme = scheme_named(name)
        layout = bind(scheme, x.shape)
        assert equal(torch_ops.fake_quantize(x, scheme), torch_ops.fake_quantize(x, layout))
        codes, stored = torch_ops.quantize(x, scheme)
        assert equal(torch_ops.dequantize(codes, layout, stored), torch_ops.fake_quantize(x, layout))


def test_tensor_scale() -> None:
    x = torch.randn(4, 64)
    layout = bind(scheme_named("nvfp4"), x.shape)
    want = native.fake_quantize(x.numpy(), layout, tensor_scale=0.01)
    for t in (0.01, torch.tensor(0.01)):
        assert same_bits(torch_ops.fake_quantize(x, layout, tensor_scale=t).numpy(), want).all()
        codes, stored = torch_ops.quantize(x, layout, tensor_scale=t)
        assert float(stored.tensor_scale) == np.float32(0.01)
        assert same_bits(torch_ops.dequantize(codes, layout, stored).numpy(), want).all()
        assert equal(torch_ops.choose_params(x, layout, tensor_scale=t).scales, stored.scales)
        place = "nvfp4", layout.block, None, None, torch.tensor(0.01)
        assert same_bits(torch_reference.fake_quantize(x, *place).numpy(), want).all()


def test_seeds_of_64_bits() -> None:
    x = torch.randn(4, 64)
    layout = bind(scheme_named("mxfp4,rounding=stochastic"), x.shape)
    for seed in (0, 1, 1 << 63, (1 << 64) - 1):
        got = torch_ops.fake_quantize(x, layout, seed=seed)
        assert same_bits(got.numpy(), native.fake_quantize(x.numpy(), layout, seed=seed)).all()
        assert equal(got, torch_ops.fake_quantize(x, layout, seed=seed))
    for seed in (-1, 1 << 64):
        with pytest.raises(errors.ArgumentError, match="seed"):
            torch_ops.fake_quantize(x, layout, seed=seed)


@pytest.mark.parametrize("name", ["mxfp4", "mxint8,rounding=stochastic", "nvfp4", "uint8"])
def test_threads_and_modes_change_nothing(name: str) -> None:
    layout = bind(scheme_named(name), (301, 4001))
    x = to_torch(trouble(layout.numbers, layout.shape, "f32", 3))
    torch.set_num_threads(2)
    want = torch_ops.fake_quantize(x, layout, seed=5)
    codes, stored = torch_ops.quantize(x, layout, seed=5)
    values = torch_ops.dequantize(codes, layout, stored)
    for threads, flush in ((1, False), (2, False), (2, True), (1, True), (3, False)):
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flush)
        got = torch_ops.fake_quantize(x, layout, seed=5)
        again, params = torch_ops.quantize(x, layout, seed=5)
        decoded = torch_ops.dequantize(again, layout, params)
        torch.set_flush_denormal(False)
        assert equal(got, want) and equal(again, codes) and equal(decoded, values)


def test_default_device_and_dtype_do_not_matter() -> None:
    x = torch.randn(4, 64)
    want = ops.dynamic_quantize(x, "nvfp4", [1, 16])
    try:
        torch.set_default_dtype(torch.float16)
        with torch.device("meta"):
            got = ops.dynamic_quantize(x, "nvfp4", [1, 16])
            pure = torch_reference.dynamic_quantize(x, "nvfp4", [1, 16])
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(map(equal, got, want)) and all(map(equal, pure, want))


def test_subclasses_and_modes_see_the_operator() -> None:
    """The shortcut past the dispatcher is not taken where someone listens."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Listen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.randn(4, 64)
    with Listen():
        ops.fake_quantize(x, "mxfp4", [1, 32])
        ops.fake_quantize(x.clone().requires_grad_(), "mxfp4", [1, 32])
        ops.fake_quantize.out(x, "mxfp4", [1, 32], out=x)
    assert seen.count("blockscale.fake_quantize.default") == 2
    assert seen.count("blockscale.fake_quantize.out") == 1


# ---------------------------------------------------------------------------------------- bad input

INT8 = "int8", [1, 0]


def scale(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.uint8, torch.complex64, torch.bool])
def test_wrong_dtype(dtype: torch.dtype, device: str) -> None:
    x = torch.zeros(2, 32, dtype=dtype, device=device)
    for call in (ops.fake_quantize, ops.dynamic_quantize, ops.choose_params, torch_reference.fake_quantize):
        with pytest.raises(errors.DtypeError, match="cast it first"):
            call(x, "mxfp4", [1, 32])


@pytest.mark.parametrize(
    "kernel", [ops.fake_quantize, torch_cpu.fake_quantize, torch_reference.fake_quantize]
)
def test_wrong_parameters(kernel: Any) -> None:
    x = torch.randn(2, 8)
    wrong: list[tuple[type[Exception], str, tuple[Any, ...]]] = [
        (errors.ScaleError, "positive", (*INT8, scale(1, 0))),
        (errors.ScaleError, "positive", (*INT8, scale(1, -1))),
        (errors.ScaleError, "positive", (*INT8, scale(1, torch.nan))),
        (errors.ScaleError, "positive", (*INT8, scale(1, torch.inf))),
        (errors.ScaleError, "shape", (*INT8, scale(1, 1).T)),
        (errors.ScaleError, "shape", (*INT8, scale(1))),
        (errors.DtypeError, "float32", (*INT8, scale(1, 1).double())),
        (errors.DtypeError, "uint8", ("mxfp4", [1, 32], scale(1, 1))),
        (errors.ScaleError, "zero_point", (*INT8, scale(1, 1), torch.zeros(2, 1, dtype=torch.int32))),
        (errors.ScaleError, "zero_point", ("uint8", [1, 0], scale(1, 1))),
        (errors.ScaleError, "zero_point", ("uint8", [1, 0], None, torch.zeros(2, 1, dtype=torch.int32))),
        (errors.ScaleError, "0 to 255", ("uint8", [1, 0], scale(1, 1), torch.full((2, 1), 256).int())),
        (errors.DtypeError, "int32", ("uint8", [1, 0], scale(1, 1), torch.zeros(2, 1))),
        (errors.ScaleError, "shape", ("uint8", [1, 0], scale(1, 1), torch.zeros(2, dtype=torch.int32))),
        (errors.ScaleError, "tensor_scale", (*INT8, None, None, torch.tensor(1.0))),
        (errors.ScaleError, "tensor_scale", ("nvfp4", [1, 16], torch.ones(2, 1, dtype=torch.uint8))),
        (errors.ScaleError, "tensor_scale", ("nvfp4", [1, 16], None, None, torch.tensor(0.0))),
        (errors.ScaleError, "tensor_scale", ("nvfp4", [1, 16], None, None, torch.ones(1))),
        (errors.ScaleError, "negative",
         ("nvfp4", [1, 16], torch.full((2, 1), 200).byte(), None, torch.tensor(1.0))),
        (errors.CombinationError, "none of its scales",
         ("mxfp4,dialect=quark", [1, 32], torch.ones(2, 1, dtype=torch.uint8))),
        (errors.UnknownNameError, "mxfp5", ("mxfp5", [1, 32])),
        (errors.BlockError, "block", ("mxfp4", [32])),
        (errors.BlockError, "block", ("mxfp4", [1, -1])),
        (errors.ArgumentError, "device", (*INT8, scale(1, 1).to("meta"))),
    ]  # fmt: skip
    for error, message, arguments in wrong:
        with pytest.raises(error, match=message):
            kernel(x, *arguments)
    with pytest.raises(errors.UnknownNameError, match="gradient"):
        kernel(x, "mxfp4", [1, 32], gradient="clip")


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_wrong_codes(device: str) -> None:
    x = torch.randn(2, 8)
    codes, s, z, t = (one.to(device) for one in ops.dynamic_quantize(x, "mxfp4", [1, 32]))
    last = "mxfp4", [2, 8], [1, 32]
    with pytest.raises(errors.DtypeError, match="uint8"):
        ops.dequantize(codes.char(), s, z, t, *last, dtype=torch.float32)
    with pytest.raises(errors.DtypeError, match="float32"):
        ops.dequantize(codes, s, z, t, *last, dtype=torch.float64)
    with pytest.raises(errors.ArgumentError, match="block"):
        ops.dequantize(codes, s, z, t, "mxfp4", [2, 8], [32], dtype=torch.float32)
    if device == "cpu":
        with pytest.raises(errors.CodesError, match="shape"):
            ops.dequantize(codes[:, :3], s, z, t, *last, dtype=torch.float32)
    for call in (ops.dynamic_quantize, ops.choose_params, torch_reference.dynamic_quantize):
        with pytest.raises(errors.CombinationError, match="no codes"):
            call(x.to(device), "mxfp4,dialect=quark", [1, 32])


def test_wrong_out() -> None:
    x = torch.randn(4, 64)
    place = "mxfp4", [1, 32]
    memory = torch.zeros(300)
    for out in (
        torch.empty(4, 32), torch.empty(4, 64).half(), torch.empty(4, 64, device="meta"),
        torch.empty(4, 1).expand(4, 64),
    ):  # fmt: skip
        with pytest.raises(errors.OutError):
            ops.fake_quantize.out(x, *place, out=out)
    with pytest.raises(errors.OutError, match="overlaps"):
        ops.fake_quantize.out(memory[:256].view(4, 64), *place, out=memory[1:257].view(4, 64))
    with pytest.raises(errors.OutError, match="requires grad"):
        ops.fake_quantize.out(x.requires_grad_(), *place, out=torch.empty(4, 64))


@pytest.mark.filterwarnings("ignore::UserWarning")  # some of these kinds of tensors are on their way out
def test_other_kinds_of_tensors_are_refused() -> None:
    x = torch.ones(2, 32)
    for other in (x.to_sparse(), x.to_mkldnn(), torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)):
        with pytest.raises((errors.ArgumentError, errors.DtypeError), match="x"):
            ops.fake_quantize(other, "mxfp4", [1, 32])
    with pytest.raises(NotImplementedError, match="fake_quantize"):  # torch's own word
        ops.fake_quantize(torch.nested.nested_tensor([x, x]), "mxfp4", [1, 32])


def test_shape_of_the_layout() -> None:
    with pytest.raises(errors.ShapeError, match="that of the layout"):
        torch_ops.fake_quantize(torch.ones(2, 32), bind(scheme_named("mxfp4"), (2, 33)))
