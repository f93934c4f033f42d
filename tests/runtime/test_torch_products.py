"""Products by weights of codes on the CPU: the canonical dot product bit for bit, others within their bound."""

from __future__ import annotations

import copy
import gc
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from blockscale import errors
from blockscale.graph.fused_fields import fields_of
from blockscale.numerics.dot import dot
from blockscale.numerics.layout import bind
from blockscale.numerics.packing import unpack
from blockscale.numerics.scheme import scheme_named
from blockscale.runtime import torch_packed, torch_products
from runtime.fused_cases import Quantized, as_codes, as_dynamic, as_is, call, layout_for, ops, place_of
from runtime.torch_cases import disordered, equal

WEIGHTS = (
    "mxfp4", "mxfp6", "fp6_e3m2,scale=e8m0", "mxint8", "mxfp8", "mxfp8_e5m2", "nvfp4", "int8-channel",
    "uint8-token", "int4-g32", "int4-g64", "uint4-g32", "int8",
)  # fmt: skip
INPUTS = (None, "mxint8", "mxfp4", "mxfp6", "mxfp8", "nvfp4", "int8-token", "int8", "uint8-token", "int4-g32")
EXACT = ("mxfp4", "mxfp6", "mxint8")


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny products wait for threads longer than they compute
    yield
    torch.set_num_threads(threads)


def linear(x: Quantized, w: Quantized, bias: Tensor | None = None, compute: Any = None) -> Tensor:
    operator, args, settings = call("linear", [x, w, as_is(bias)], {}, compute=compute)
    return operator(*args, **settings)  # type: ignore[no-any-return]


def decoded(x: Quantized, w: Quantized, bias: Tensor | None = None, compute: Any = None) -> Tensor:
    with torch_products.decoding():
        return linear(x, w, bias, compute)


def canonical(x: Tensor, x_name: str, w: Tensor, w_name: str) -> Tensor:
    """By numpy, from values."""
    parts: list[Any] = []
    for one, name in ((x.reshape(-1, x.shape[-1]).float(), x_name), (w.float(), w_name)):
        layout = layout_for(name, tuple(one.shape))
        codes, scale, *_ = ops.dynamic_quantize(one, *place_of(layout))
        plain = unpack(codes.numpy(), layout.numbers.element_format, one.shape[-1])
        parts += [plain, scale.numpy(), layout]
    return torch.from_numpy(dot(*parts)).reshape(*x.shape[:-1], -1)


def bound(x: Quantized, w: Quantized) -> Tensor:
    """Of the difference from the product of the decoded operands: that of core/linear.h, and ATen's own."""
    assert x.floats is not None and w.floats is not None
    magnitude = x.floats.abs().double() @ w.floats.abs().double().T
    length = x.floats.shape[-1]
    return magnitude * 4 * (34 + length) * 2.0**-24 + 1e-30


@pytest.mark.parametrize("w_name", EXACT)
@pytest.mark.parametrize("x_name", EXACT)
def test_canonical_bits(x_name: str, w_name: str) -> None:
    for lead, n, k in (((1,), 48, 96), ((5,), 17, 40), ((2, 3), 33, 64), ((70,), 8, 31), ((), 5, 32)):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            x, w, b = torch.randn(*lead, k).to(dtype), torch.randn(n, k), torch.randn(n)
            want = canonical(x, x_name, w, w_name)
            weight = as_codes(w, w_name)
            for one in (as_dynamic(x, x_name), as_codes(x, x_name)):
                assert equal(linear(one, weight, compute=dtype), want.to(dtype))
            if dtype is torch.float32:
                assert equal(linear(as_dynamic(x, x_name), weight, b), want + b)


def test_a_row_never_depends_on_its_batch_or_on_threads() -> None:
    x, weight = torch.randn(40, 160), as_codes(torch.randn(70, 160), "mxfp4")
    for name in (None, "mxint8", "int8-token"):
        make = as_is if name is None else lambda one, name=name: as_dynamic(one, name)
        want = linear(make(x), weight)
        for count in (1, 2):
            torch.set_num_threads(count)
            rows = [linear(make(x[i : i + 3]), weight) for i in range(0, 40, 3)]
            assert equal(torch.cat(rows), want)
        torch.set_num_threads(1)


@pytest.mark.parametrize("w_name", WEIGHTS)
@pytest.mark.parametrize("x_name", INPUTS)
def test_within_the_bound_of_the_decoded_product(w_name: str, x_name: str | None) -> None:
    x, w, b = torch.randn(2, 3, 96), torch.randn(40, 96), torch.randn(40)
    weight = as_codes(w, w_name)
    assert torch_packed.packed(weight.given, weight.fields, False).kernel is not None
    inputs = [as_is(x)] if x_name is None else [as_dynamic(x, x_name), as_codes(x, x_name)]
    for one in inputs:
        got = linear(one, weight, b)
        assert got.dtype is torch.float32 and got.shape == (2, 3, 40)
        exact = one.floats.double() @ weight.floats.double().T + b
        assert ((got - exact).abs() <= bound(one, weight) + b.abs() * 1e-6).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_the_width(dtype: torch.dtype) -> None:
    x, b, weight = (
        torch.randn(5, 64).to(dtype),
        torch.randn(24).to(dtype),
        as_codes(torch.randn(24, 64), "mxfp4"),
    )
    for one in (as_is(x), as_dynamic(x, "mxfp8")):
        got = linear(one, weight, b)
        assert got.dtype is dtype
        exact = one.floats.double() @ weight.floats.double().T + b.double()
        step = 2.0**-8 if dtype is torch.bfloat16 else 2.0**-11
        assert ((got.double() - exact).abs() <= exact.abs() * step + 1e-4).all()


@pytest.mark.parametrize("name", ["mm", "matmul", "addmm"])
@pytest.mark.parametrize("w_name", ["mxfp4,axis=0", "int8-channel,axis=1", "mxint8,axis=0", "mxfp4"])
def test_weights_as_kn(name: str, w_name: str) -> None:
    x, y, b = torch.randn(5, 64), torch.randn(64, 24), torch.randn(24)
    scheme, _, axis = w_name.partition(",axis=")
    turned = as_codes(y, scheme) if not axis else _along(y, scheme, int(axis))
    one = as_dynamic(x, "mxint8")
    operands = [one, turned, as_is(b)][: 3 if name == "addmm" else 2]
    operator, args, settings = call(name, operands, {})
    got = operator(*args, **settings)
    exact = one.floats.double() @ turned.floats.double() + (b if name == "addmm" else 0)
    assert ((got - exact).abs() <= 1e-4).all()
    if w_name in ("mxfp4,axis=0", "mxint8,axis=0"):
        want = canonical(x, "mxint8", y.T.contiguous(), scheme)
        assert equal(got, want + b if name == "addmm" else want)
    if name == "addmm":
        operator, args, settings = call(name, operands, {"alpha": 2})
        assert torch.allclose(operator(*args, **settings), (2 * (exact - b) + b).float(), atol=1e-4)


def _along(x: Tensor, scheme: str, axis: int) -> Quantized:
    layout = bind(replace(scheme_named(scheme), axis=axis), x.shape)
    codes, *params = ops.dynamic_quantize(x, *place_of(layout))
    floats = ops.dequantize(codes, *params, place_of(layout)[0], x.shape, layout.block, dtype=x.dtype)
    return Quantized(codes, fields_of(layout, *params), floats)


def test_any_memory() -> None:
    x, weight = torch.randn(6, 64), as_codes(torch.randn(24, 64), "mxfp4")
    want = linear(as_dynamic(x, "mxint8"), weight)
    for name, one in disordered(x):
        for change in (as_is, lambda given: as_dynamic(given, "mxint8")):
            got = linear(change(one.detach()), weight)
            assert equal(got, want if change is not as_is else linear(as_is(x), weight)), name
    wide = torch.zeros(6, 100)
    wide[:, 7:71] = x
    assert equal(linear(as_dynamic(wide[:, 7:71], "mxint8"), weight), want)


def test_outputs_are_quantized_as_they_were() -> None:
    x, weight = as_dynamic(torch.randn(5, 64), "mxint8"), as_codes(torch.randn(32, 64), "mxfp4")
    y = linear(x, weight)
    layout = layout_for("mxfp8", y.shape)
    want = ops.dynamic_quantize(y, *place_of(layout))
    operator, args, settings = call("linear", [x, weight, as_is(None)], {}, fields_of(layout))
    assert all(map(equal, operator(*args, **settings), want))
    out = fields_of(layout, *want[1:])
    operator, args, settings = call("linear", [x, weight, as_is(None)], {}, out)
    assert equal(operator(*args, **settings), want[0])


def test_special_values() -> None:
    x, w = torch.randn(4, 64), torch.randn(24, 64)
    x[1, 40], x[2, 3], w[5, 0] = torch.nan, torch.inf, torch.nan
    got = linear(as_dynamic(x, "mxint8"), as_codes(w, "mxfp4"))
    assert equal(got, canonical(x, "mxint8", w, "mxfp4"))
    assert got[:, 5].isnan().all() and got[1:3].isnan().all() and got[0, :5].isfinite().all()


@pytest.mark.parametrize("w_name", ["int8-g24", "int4-g12", "int16-channel"])
def test_what_has_no_kernel_is_decoded(w_name: str) -> None:
    x, weight = as_is(torch.randn(3, 48)), as_codes(torch.randn(8, 48), w_name)
    assert torch_packed.packed(weight.given, weight.fields, False).kernel is None
    assert equal(linear(x, weight), decoded(x, weight))


def test_inputs_without_a_kernel_are_decoded() -> None:
    weight = as_codes(torch.randn(8, 64), "mxfp4")
    across = _along(torch.randn(32, 64), "mxint8", 0)
    assert equal(linear(across, weight), decoded(across, weight))
    quark = as_dynamic(torch.randn(3, 64), "mxfp4,dialect=quark")
    assert equal(linear(quark, weight), decoded(quark, weight))
    empty = as_is(torch.randn(0, 64))
    assert linear(empty, weight).shape == (0, 8)


# ---------------------------------------------------------------------------------- what is packed


def count() -> int:
    gc.collect()
    return len(torch_packed.kept())


def test_packed_once_and_dropped_with_the_codes() -> None:
    before = count()
    weight = as_codes(torch.randn(24, 64), "mxfp4")
    x = as_is(torch.randn(3, 64))
    linear(x, weight)
    first = torch_packed.packed(weight.given, weight.fields, False)
    for _ in range(3):
        linear(x, weight)
    assert torch_packed.packed(weight.given, weight.fields, False) is first and count() == before + 1
    twin = copy.deepcopy(weight)
    linear(x, twin)
    assert count() == before + 2
    del weight, twin, first
    assert count() == before


def test_made_again_when_codes_or_scales_are_written_to() -> None:
    x, weight = as_is(torch.randn(3, 64)), as_codes(torch.randn(24, 64), "mxfp4")
    other = as_codes(torch.randn(24, 64) * 9, "mxfp4")
    linear(x, weight)
    weight.given.copy_(other.given)
    assert equal(linear(x, weight), linear(x, Quantized(other.given, weight.fields, None)))
    weight.fields.scale.copy_(other.fields.scale)
    assert equal(linear(x, weight), linear(x, other))


def test_codes_made_in_inference_mode_are_never_stale() -> None:
    with torch.inference_mode():
        x, weight = as_is(torch.randn(3, 64)), as_codes(torch.randn(24, 64), "mxfp4")
        before = count()
        want = linear(x, weight)
        weight.fields.scale.add_(1)
        assert equal(linear(x, weight), want * 2)
        assert count() == before


def test_threads() -> None:
    weights = [as_codes(torch.randn(40, 96), "mxfp4") for _ in range(4)]
    x = torch.randn(6, 96)
    want = [linear(as_dynamic(x, "mxint8"), copy.deepcopy(one)) for one in weights]
    wrong: list[int] = []

    def work() -> None:
        for turn in range(20):
            i = turn % 4
            if not equal(linear(as_dynamic(x, "mxint8"), weights[i]), want[i]):
                wrong.append(turn)

    workers = [threading.Thread(target=work) for _ in range(6)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    assert not wrong
    assert len({id(torch_packed.packed(one.given, one.fields, False)) for one in weights}) == 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_packs_and_runs() -> None:
    weight, x = as_codes(torch.randn(24, 64), "mxfp4"), as_dynamic(torch.randn(3, 64), "mxint8")
    want = linear(x, weight)
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        fine = equal(linear(x, weight), want) and equal(linear(x, copy.deepcopy(weight)), want)
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0


# -------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(("changes", "kind", "message"), [
    ({"x": torch.zeros(3, 64, dtype=torch.int32)}, errors.DtypeError, "linear, operand x: .*float dtype"),
    ({"x": torch.zeros(3, 32)}, errors.ShapeError, "not taken by ATen"),
    ({"compute": torch.bfloat16}, errors.DtypeError, "compute and float operands"),
    ({"bias": torch.zeros(7)}, errors.ShapeError, "not taken by ATen"),
    ({"bias_dtype": "int8"}, errors.ScaleError, "no operand"),
    ({"weight_dtype": "mxfp4"}, errors.UnknownNameError, "operand weight"),
    ({"weight_scale": torch.ones(2, 24, dtype=torch.uint8)}, errors.ScaleError, "operand weight.*scale shape"),
    ({"weight_last": 43}, errors.ShapeError, "last"),
    ({"x_dtype": "int8,rounding=stochastic", "x_block": [1, 0]}, errors.CombinationError, "seed"),
    ({"out_dtype": "int8"}, errors.ScaleError, "output"),
])  # fmt: skip
def test_bad_input(changes: dict[str, Any], kind: type[Exception], message: str) -> None:
    weight = as_codes(torch.randn(24, 64), "mxfp4")
    operator, args, settings = call("linear", [as_is(torch.randn(3, 64)), weight, as_is(None)], {})
    names = [a.name for a in operator._schema.arguments]
    with pytest.raises(kind, match=message):
        operator(**dict(zip(names, args, strict=False)) | settings | changes)


def test_a_scale_that_is_no_number() -> None:
    weight = as_codes(torch.randn(24, 64), "int8-channel")
    weight.fields.scale[3] = -1.0
    with pytest.raises(errors.ScaleError, match="operand weight"):
        linear(as_is(torch.randn(3, 64)), weight)


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, used in (("0", False), ("1", True), (None, True)):
        monkeypatch.delenv("BLOCKSCALE_KERNELS", raising=False)
        if value is not None:
            monkeypatch.setenv("BLOCKSCALE_KERNELS", value)
        assert torch_products.asked() is used
    monkeypatch.setenv("BLOCKSCALE_KERNELS", "no")
    with pytest.raises(errors.InstallationError, match="BLOCKSCALE_KERNELS='no'"):
        torch_products.asked()
