"""Fused operators under opcheck, torch.export and torch.compile, with shapes that are not known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim

from blockscale.graph.fused import ROW_OF
from blockscale.graph.fused_fields import FLOAT, Fields, arguments_of, fields_of
from blockscale.runtime.torch_fused_fields import full_rank
from runtime.fused_cases import CASES, Case, as_codes, as_dynamic, as_is, call, layout_for, ops, place_of
from runtime.torch_cases import equal

# torch warns of its own deprecated functions while it exports and compiles.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
]

MXFP4 = ("mxfp4", [1, 32])


@pytest.fixture(autouse=True)
def no_compiled_code() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


# ----------------------------------------------------------------------------------------- opcheck

_FIRST = {case.name: case for case in reversed(CASES)}
OPCHECKED = ("linear", "matmul", "conv2d", "embedding", "add", "requantize", "add_rms_norm_quantize")


@pytest.mark.parametrize("name", OPCHECKED)
@pytest.mark.parametrize("dynamic", [False, True])
def test_opcheck(name: str, dynamic: bool) -> None:
    case = _FIRST[name]
    x, *others = case.operands()
    assert x is not None
    operands = [as_codes(x, "uint8-token"), *(map(as_is, others))]
    if len(others) and others[0] is not None:
        operands[1] = as_codes(others[0], "mxfp4")
    found = case.floats(*(one.floats for one in operands))
    want = found[0] if isinstance(found, tuple) else found
    layout = layout_for("nvfp4", want.shape)
    params = [] if dynamic else ops.dynamic_quantize(want, *place_of(layout))[1:]
    operator, args, settings = call(name, operands, case.rest, fields_of(layout, *params))
    torch.library.opcheck(operator, args, settings)


def test_opcheck_of_what_is_trained() -> None:
    x = torch.nn.Parameter(torch.randn(3, 40))
    operator, args, settings = call(
        "linear", [as_dynamic(x, "mxint8"), as_is(torch.randn(8, 40)), as_is(None)], {}
    )
    torch.library.opcheck(operator, args, settings)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_fake_kernels_say_what_kernels_return(case: Case) -> None:
    """Shape, strides and dtype."""
    operands = [as_is(None) if x is None else as_codes(x, "int4-g12") for x in case.operands()]
    found = case.floats(*(one.floats for one in operands))
    want = found[0] if isinstance(found, tuple) else found
    for layout in (layout_for("mxfp6", want.shape), None):
        if (layout is None) == case.name.endswith("quantize") or (layout and case.name.endswith("_norm")):
            continue
        operator, args, settings = call(
            case.name, operands, case.rest, FLOAT if layout is None else fields_of(layout)
        )
        real = operator(*args, **settings)
        meta_args = [a.to("meta") if isinstance(a, Tensor) else a for a in args]
        meta_settings = {k: v.to("meta") if isinstance(v, Tensor) else v for k, v in settings.items()}
        fake = operator(*meta_args, **meta_settings)
        pairs = zip(real, fake, strict=True) if isinstance(real, tuple) else [(real, fake)]
        for one, other in pairs:
            assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)


# ------------------------------------------------------------------------------ export and compile

WEIGHT = as_codes(torch.randn(32, 64), "int8-g16")
NORM = torch.rand(64) + 0.5


def both_quantized(x: Tensor) -> Tensor:
    """codes of x → linear → codes → floats, with blocks that symbolic shapes leave open."""
    codes, scale, zeros, t = ops.dynamic_quantize(x, *MXFP4)
    fields = [Fields(scale, None, "fp4_e2m1"), WEIGHT.fields, FLOAT]
    args, settings = arguments_of(
        ROW_OF["linear"], [codes, WEIGHT.given, None], fields, Fields(dtype="mxint8", block=[1, 32])
    )
    y, b, zeros, t = ops.linear.dynamic(*args, **settings)
    return ops.dequantize(y, b, zeros, t, "mxint8", [x.shape[0], 32], [1, 32], dtype=x.dtype)


def residual(x: Tensor) -> Tensor:
    out = Fields(dtype="nvfp4", block=[1, 16])
    args, settings = arguments_of(ROW_OF["add_rms_norm_quantize"], [x, x * 2, NORM], [FLOAT] * 3, out)
    codes, scale, zeros, t, total = ops.add_rms_norm_quantize.dynamic(
        *args, **settings, normalized_shape=[64], eps=1e-6, form="weight_last"
    )
    y = ops.dequantize(codes, scale, zeros, t, "nvfp4", x.shape, [1, 16], dtype=x.dtype)
    return y + total


def beside(x: Tensor) -> Tensor:
    args, settings = arguments_of(ROW_OF["relu"], [x], [FLOAT])
    return x + ops.relu(*args, **settings)


def channels(x: Tensor) -> Tensor:
    """A 1-D scale, viewed to full rank on the way in."""
    scale = full_rank(x[0].abs() + 0.5, 2, 1)
    codes = ops.quantize(x, "int8", [0, 1], scale)
    args, settings = arguments_of(ROW_OF["mul.Scalar"], [codes], [Fields(scale, None, "int8")])
    return ops.mul.Scalar(*args, **settings, other=0.5)


FUNCTIONS = [both_quantized, residual, beside, channels]


class Module(torch.nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_export_with_dynamic_shapes(function: Any, strict: bool) -> None:
    program = torch.export.export(
        Module(function), (torch.randn(4, 64),), dynamic_shapes={"x": {0: Dim("n")}}, strict=strict
    )
    for one in (program, program.run_decompositions({})):
        for n in (4, 7):
            x = torch.randn(n, 64)
            assert equal(one.module()(x), function(x))


def test_two_values_stay_two() -> None:
    """A fake kernel that returned its argument would make `x + F(x)` into `F(x) + F(x)`."""
    program = torch.export.export(Module(beside), (torch.randn(4, 64),), strict=False)
    (add,) = (n for n in program.graph.nodes if "aten.add" in str(n.target))
    first, second = add.args
    assert first.op == "placeholder" and second.target is ops.relu.default


@pytest.mark.parametrize("function", FUNCTIONS)
def test_compile(function: Any) -> None:
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)
    for n in (4, 7):
        x = torch.randn(n, 64)
        assert equal(compiled(x), function(x))


def test_saved_and_loaded(tmp_path: Any) -> None:
    program = torch.export.export(Module(residual), (torch.randn(4, 64),), strict=False)
    torch.export.save(program, tmp_path / "model.pt2")
    x = torch.randn(4, 64)
    assert equal(torch.export.load(tmp_path / "model.pt2").module()(x), residual(x))
