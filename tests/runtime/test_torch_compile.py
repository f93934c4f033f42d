"""The torch operators under opcheck, torch.export and torch.compile, and their gradients."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim

from blockscale import errors
from blockscale.numerics.layout import bind
from blockscale.numerics.scheme import scheme_named
from blockscale.runtime import torch_ops
from blockscale.runtime.torch_bound import Gradient
from conformance.core_cases import all_numbers, thinned
from runtime.torch_cases import equal

# torch warns of its own deprecated functions while it exports and compiles.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
]

ops = torch.ops.blockscale
MXFP4 = "mxfp4", [1, 32]
NVFP4 = "nvfp4", [1, 16]
UINT8 = "uint8", [1, 0]
Function = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def no_compiled_code() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


# ----------------------------------------------------------------------------------------- opcheck


def _opcheck_cases() -> Iterator[Any]:
    x = torch.randn(4, 70)
    transposed = torch.randn(70, 4).T
    trained = torch.nn.Parameter(torch.randn(4, 70))
    nvfp4 = ops.dynamic_quantize(x, *NVFP4)
    uint8 = ops.dynamic_quantize(x, *UINT8)
    yield "fake_quantize", ops.fake_quantize.default, (x, *MXFP4), {}
    yield "transposed", ops.fake_quantize.default, (transposed, *MXFP4), {}
    yield "expanded", ops.fake_quantize.default, (x[:1].expand(4, 70), *MXFP4), {}
    yield "straight", ops.fake_quantize.default, (trained, *NVFP4, *nvfp4[1:]), {"seed": 3}
    yield "clipped", ops.fake_quantize.default, (trained, *UINT8, *uint8[1:]), {"gradient": "clipped"}
    yield "clipped dynamic", ops.fake_quantize.default, (trained, *MXFP4), {"gradient": "clipped"}
    yield "bfloat16", ops.fake_quantize.default, (x.bfloat16(), *MXFP4), {}
    yield "out", ops.fake_quantize.out, (x, *MXFP4), {"out": torch.empty_like(x)}
    yield "strided out", ops.fake_quantize.out, (x, *MXFP4), {"out": torch.empty_like(transposed)}
    yield "quantize", ops.quantize.default, (x, *NVFP4, *nvfp4[1:]), {}
    yield "quantize grad", ops.quantize.default, (trained, *UINT8, *uint8[1:3]), {}
    yield "dynamic_quantize", ops.dynamic_quantize.default, (transposed, *MXFP4), {}
    yield "dynamic_quantize grad", ops.dynamic_quantize.default, (trained, *UINT8), {}
    yield "tensor_scale", ops.dynamic_quantize.default, (x, *NVFP4, torch.tensor(0.01)), {}
    yield "choose_params", ops.choose_params.default, (trained, *UINT8), {}
    yield "dequantize", ops.dequantize.default, (*nvfp4, "nvfp4", [4, 70], [1, 16]), {"dtype": torch.float16}
    yield "unsaturated", ops.unsaturated.default, (transposed, *UINT8, *uint8[1:3]), {}
    yield "0-d", ops.dynamic_quantize.default, (torch.tensor(0.7), "mxfp6", []), {}
    yield "empty", ops.dynamic_quantize.default, (torch.empty(0, 5), "int4", [1, 0]), {}


@pytest.mark.parametrize(("operator", "arguments", "settings"), [
    pytest.param(*rest, id=name) for name, *rest in _opcheck_cases()
])  # fmt: skip
def test_opcheck(operator: Any, arguments: Any, settings: Any) -> None:
    torch.library.opcheck(operator, arguments, settings)


def test_fake_kernels_say_what_kernels_return() -> None:
    """Shape, strides and dtype, for every kind of numbers."""
    for i, numbers in enumerate(thinned(all_numbers())):
        if numbers.why_no_codes or i % 5:
            continue
        x, block = (
            torch.randn(5, 4, 13).permute(*((0, 1, 2), (2, 0, 1), (1, 2, 0))[i % 3]),
            [(0, 1, 3)[i % 3], 1, 8],
        )
        real = ops.dynamic_quantize(x, str(numbers), block)
        fake = ops.dynamic_quantize(x.to("meta"), str(numbers), block)
        place = (str(numbers), list(x.shape), block)
        real += (
            ops.dequantize(*real, *place, dtype=torch.float16),
            ops.fake_quantize(x, str(numbers), block),
        )
        fake += (ops.dequantize(*fake, *place, dtype=torch.float16),
                 ops.fake_quantize(x.to("meta"), str(numbers), block))  # fmt: skip
        for one, other in zip(real, fake, strict=True):
            assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype), numbers


# ------------------------------------------------------------------------------ export and compile

SCHEME = scheme_named("mxfp4")
CHANNELS = scheme_named("uint8-channel")


def beside(x: Tensor) -> Tensor:
    return x + torch_ops.fake_quantize(x, SCHEME)


def into(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    torch_ops.fake_quantize(x, SCHEME, out=y)
    return x - y


def in_place(x: Tensor) -> Tensor:
    x = x * 3
    return x + torch_ops.fake_quantize(x, SCHEME, out=x)


def there_and_back(x: Tensor) -> Tensor:
    codes, scale, zeros, t = ops.dynamic_quantize(x, *NVFP4)
    return ops.dequantize(codes, scale, zeros, t, "nvfp4", x.shape, [1, 16], dtype=x.dtype)


def per_channel(x: Tensor) -> Tensor:
    codes, stored = torch_ops.quantize(x.T, CHANNELS)
    assert stored.zero_points is not None and stored.tensor_scale is None
    return codes.float().T * stored.scales.T


FUNCTIONS = [beside, into, in_place, there_and_back]


class Module(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_export_with_dynamic_shapes(function: Function, strict: bool) -> None:
    # Sizes derived from k must not be 1, on which torch.export insists.
    shapes = {"x": {0: Dim("n"), 1: Dim("k", min=33)}}
    program = torch.export.export(
        Module(function), (torch.randn(4, 64),), dynamic_shapes=shapes, strict=strict
    )
    for one in (program, program.run_decompositions({})):
        for shape in ((4, 64), (7, 101), (3, 40)):
            x = torch.randn(shape)
            assert equal(one.module()(x), function(x))


def test_two_values_stay_two() -> None:
    """A fake kernel that returned its argument would make `x + F(x)` into `F(x) + F(x)`."""
    program = torch.export.export(Module(beside), (torch.randn(4, 64),), strict=False)
    (add,) = (n for n in program.graph.nodes if "aten.add" in str(n.target))
    first, second = add.args
    assert first.op == "placeholder" and second.target is ops.fake_quantize.default
    x = torch.randn(4, 64)
    assert equal(program.module()(x), x + ops.fake_quantize(x, *MXFP4))


@pytest.mark.parametrize("function", [*FUNCTIONS, per_channel])
def test_compile(function: Function) -> None:
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)
    for shape in ((4, 64), (7, 101)):
        x = torch.randn(shape)
        assert equal(compiled(x), function(x))


def test_compile_of_a_layout() -> None:
    layout = bind(SCHEME, (4, 64))

    def function(x: Tensor) -> Tensor:
        codes, stored = torch_ops.quantize(x, layout)
        return torch_ops.dequantize(codes, layout, stored, "bf16") + torch_ops.fake_quantize(x, layout)

    x = torch.randn(4, 64)
    assert equal(torch.compile(function, backend="aot_eager", fullgraph=True)(x), function(x))


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_compile_with_inductor() -> None:
    x = torch.randn(4, 64)

    def function(x: Tensor) -> Tensor:
        return there_and_back(x.T.relu().T) + ops.fake_quantize(x.T, *MXFP4).T

    assert equal(torch.compile(function, fullgraph=True)(x), function(x))


# --------------------------------------------------------------------------------------- gradients


def gradient_of(function: Function, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    y = function(x)
    weights = torch.arange(x.numel(), dtype=torch.float32).reshape(x.shape) + 1
    (grad,) = torch.autograd.grad((y * weights).sum(), x)
    return grad / weights


def fake(gradient: Gradient, *rest: Any) -> Function:
    return lambda x: ops.fake_quantize(x, *rest, gradient=gradient)


def test_straight_through() -> None:
    x = torch.tensor([[1.0, torch.nan, 1e30, -0.0]])
    for place in (MXFP4, NVFP4, UINT8, ("mxfp4,dialect=quark", [1, 32])):
        assert equal(gradient_of(fake("straight", *place), x), torch.ones(1, 4))


def test_clipped() -> None:
    # floor: 7 has scale 2^0 and saturates at 6
    x = torch.tensor([[7.0, 6.0, -6.5, 5.9, -6.0, 0.0]])
    assert gradient_of(fake("clipped", *MXFP4), x).tolist() == [[0, 1, 0, 1, 1, 1]]
    assert gradient_of(fake("clipped", "mxfp4,dialect=quark", [1, 32]), x).tolist() == [[0, 1, 0, 1, 1, 1]]
    spoilt = torch.tensor([[1.0, torch.nan], [1.0, 2.0]])
    assert gradient_of(fake("clipped", *MXFP4), spoilt).tolist() == [[0, 0], [1, 1]]
    scale, zero = torch.tensor([[0.5]]), torch.tensor([[10]], dtype=torch.int32)
    x = torch.tensor([[-5.0, -5.01, 0.0, 122.5, 122.6, torch.inf]])
    assert gradient_of(fake("clipped", *UINT8, scale, zero), x).tolist() == [[1, 0, 1, 1, 0, 0]]
    t, b = torch.tensor(0.25), torch.tensor([[0x38]], dtype=torch.uint8)  # 1.0
    x = torch.tensor([[1.5, 1.6, -1.5, -2.0]])
    assert gradient_of(fake("clipped", *NVFP4, b, None, t), x).tolist() == [[1, 0, 1, 0]]
    assert gradient_of(fake("clipped", *NVFP4), torch.empty(0, 16)).shape == (0, 16)


@pytest.mark.parametrize("gradient", ["straight", "clipped"])
def test_gradients_compile_and_export(gradient: Gradient) -> None:
    function = fake(gradient, *MXFP4)
    x = torch.randn(4, 64) * 3
    want = gradient_of(function, x)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    assert equal(gradient_of(compiled, x), want)
    assert equal(gradient_of(function, x.T.contiguous().T), want)
    program = torch.export.export(Module(function), (x,), strict=False)
    assert equal(gradient_of(program.module(), x), want)


def test_twice_differentiable() -> None:
    x = torch.tensor([[7.0, 3.0]], requires_grad=True)
    y = ops.fake_quantize(x, *MXFP4, gradient="clipped")
    (grad,) = torch.autograd.grad((y**2).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)
    assert second.tolist() == [[0, 2]]


@pytest.mark.parametrize("gradient", ["straight", "clipped"])
def test_training_reduces_the_loss(gradient: Gradient) -> None:
    weight = torch.nn.Parameter(torch.randn(8, 32))
    x, goal = torch.randn(64, 32), torch.randn(64, 8)
    optimizer = torch.optim.SGD([weight], lr=0.05)
    losses = []
    for _ in range(20):
        y = torch.nn.functional.linear(x, torch_ops.fake_quantize(weight, SCHEME, gradient=gradient))
        loss = torch.nn.functional.mse_loss(y, goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] * 0.7


def test_what_has_no_gradient_says_so() -> None:
    x = torch.randn(4, 64, requires_grad=True)
    for result in (*ops.dynamic_quantize(x, *NVFP4), *ops.choose_params(x, *NVFP4)):
        assert not result.requires_grad
    scale, *_ = ops.choose_params(x, "int8", [1, 0])
    assert ops.fake_quantize(x, "int8", [1, 0], scale).requires_grad
    with pytest.raises(errors.ArgumentError, match="detach"):
        ops.fake_quantize(x, "int8", [1, 0], scale.requires_grad_())
    with torch.no_grad():
        assert not ops.fake_quantize(x, "int8", [1, 0], scale).requires_grad
