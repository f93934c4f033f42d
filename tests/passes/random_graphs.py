"""FX graphs at random: moves, splits, cats, arithmetic that is exact, and everybody's quantizers, shared freely."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import Tensor, fx
from torchao.quantization.quant_primitives import MappingType

import graph.foreign  # noqa: F401  their operators
from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import Cat, Split
from numerics.moving import NUMBERS, any_move, mixed, tensor
from passes.fx_graphs import Builder, aten, run
from passes.moving_graphs import fake_quantizer, quantizer

pt2e, ao = torch.ops.quantized_decomposed, torch.ops.torchao
tico, cast = torch.ops.circle_custom, torch.ops.tensor_cast
SHAPES = ((4, 8), (2, 4, 8), (8,), (1, 4, 4), (2, 64), (3, 2, 32), (6, 1))
WIDE = tuple(n for n in NUMBERS if not n.element_format.packed)
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16)
Made = tuple[list[fx.Node], list[fx.Node]]  # results, and what the graph goes on with


class Graphs:
    """Draws one graph. `foreign`: with other people's quantizers, on finite data."""

    def __init__(self, draw: DrawFn, foreign: bool) -> None:
        self.draw, self.foreign = draw, foreign
        self.b = Builder()
        self.dtype = torch.float32 if foreign else draw(st.sampled_from(DTYPES))
        self.packed = draw(st.booleans())
        shapes = [one for one in SHAPES if one[-1] != 1 or not self.packed]
        self.pool = [self.input(draw(st.sampled_from(shapes))) for _ in range(draw(st.integers(1, 2)))]
        self.results: list[fx.Node] = []
        for _ in range(draw(st.integers(3, 9))):
            self.step()
        self.module = self.b.done(*dict.fromkeys([*self.results, *self.pool[-2:]]))

    def input(self, shape: tuple[int, ...]) -> fx.Node:
        seed = len(self.b.examples)
        x = torch.from_numpy(tensor(seed, shape, specials=False) if self.foreign else mixed(seed, shape))
        return self.b.given(x.to(self.dtype))

    def step(self) -> None:
        kind = self.draw(st.sampled_from(("move", "move", "move", "cat", "sum", "sign", "q", "q", "q")))
        x = self.draw(st.sampled_from(self.pool))
        shape = tuple(x.meta["val"].shape)
        if kind == "move":
            self.add(self.move(x, shape))
        elif kind == "cat" and shape:
            alike = [y for y in self.pool if y.meta["val"].shape == x.meta["val"].shape]
            axis = self.draw(st.integers(-len(shape), len(shape) - 1))
            self.add([self.b.move([x, self.draw(st.sampled_from(alike))], Cat(axis))])
        elif kind == "sum":
            self.add([self.b.call(aten.add.Tensor, x, x)])
        elif kind == "sign":
            self.add([self.b.call(self.draw(st.sampled_from((aten.neg, aten.abs, aten.relu))).default, x)])
        elif kind == "q":
            results, more = self.quantize(x, shape)
            self.results += results
            self.pool += more

    def add(self, nodes: list[fx.Node]) -> None:
        sizes = [tuple(n.meta["val"].shape) for n in nodes]
        narrow = any(size[-1:] == (1,) and math.prod(size) > 1 for size in sizes)
        if not (self.packed and narrow) and all(math.prod(size) < 4096 for size in sizes):
            self.pool += nodes

    def move(self, x: fx.Node, shape: tuple[int, ...]) -> list[fx.Node]:
        block = tuple(self.draw(st.sampled_from((0, 1, 2, 4, 8))) for _ in shape)
        move = self.draw(any_move(Layout(NUMBERS[0], shape, block)))
        made = self.b.move(x, move)
        return list(made) if isinstance(move, Split) else [made]

    def quantize(self, x: fx.Node, shape: tuple[int, ...]) -> Made:
        if self.foreign and math.prod(shape) and shape and self.draw(st.integers(0, 3)):
            return self.draw(st.sampled_from(FOREIGN))(self, x, shape)
        block = tuple(self.draw(st.sampled_from((0, 1, 2, 4, 32))) for _ in shape)
        numbers = self.draw(st.sampled_from(NUMBERS if self.packed else WIDE))
        layout = Layout(numbers, shape, block)
        if self.draw(st.booleans()):
            y = fake_quantizer(self.b, x, layout, 3)
            return [y], [y]
        q = quantizer(self.b, x, layout, 3)
        made = [v for v in q if v is not None and v.op != "get_attr"]
        if not self.draw(st.booleans()):
            return made, []
        y = self.b.dequantize(q, x, str(numbers), block)
        return [y, *made[self.draw(st.integers(0, 1)) :]], [y]

    # ------------------------------------------------------------------------ other people's

    def scale(self, *shape: int) -> Any:
        return self.b.constant(
            torch.full(shape, 0.125) * torch.arange(1, 1 + math.prod(shape)).reshape(shape)
        )

    def zero(self, *shape: int, dtype: torch.dtype = torch.int32) -> Any:
        return self.b.constant(torch.full(shape, 3, dtype=dtype))


def _cast_static(g: Graphs, x: fx.Node, shape: tuple[int, ...]) -> Made:
    channel = g.draw(st.integers(0, len(shape) - 1))
    sizes = g.draw(st.sampled_from(((), (1,), tuple(n if i == channel else 1 for i, n in enumerate(shape)))))
    zero = g.draw(st.sampled_from((None, g.zero(*sizes))))
    return [g.b.call(cast.quantize.default, x, g.scale(*sizes), zero)], []


def _cast_dynamic(g: Graphs, x: fx.Node, shape: tuple[int, ...]) -> Made:
    rank = len(shape)
    dims = g.draw(st.sampled_from(([-1], [rank - 1], [0], [], list(range(rank)))))
    kind = g.draw(st.sampled_from((cast.dynamic_quantize_symmetric, cast.dynamic_quantize_asymmetric)))
    return g.b.items(g.b.call(kind.default, x, dims)), []


def _cast_mx(g: Graphs, x: fx.Node, shape: tuple[int, ...]) -> Made:
    return g.b.items(
        g.b.call(cast.dynamic_quantize_mxfp4.default, x, g.draw(st.sampled_from((4, 8, 32))))
    ), []


def _pt2e_tensor(g: Graphs, x: fx.Node, shape: tuple[int, ...]) -> Made:
    place: tuple[Any, ...] = (0.125, 3, -128, 127, torch.int8)
    name = g.draw(st.sampled_from(("default", "tensor")))
    if name == "tensor":
        place = (g.scale(1), g.zero(1), *place[2:])
    q = g.b.call(getattr(pt2e.quantize_per_tensor, name), x, *place)
    y = g.b.call(getattr(pt2e.dequantize_per_tensor, name), q, *place)
    return [q, y], [y]


def _pt2e_channel(g: Graphs, x: fx.Node, shape: tuple[int, ...]) -> Made:
    axis = g.draw(st.integers(0, len(shape) - 1))
    n = shape[axis]
    place = (g.scale(n), g.zero(n), axis, -128, 127, torch.int8)
    q = g.b.call(pt2e.quantize_per_channel.default, x, *place)
    y = g.b.call(pt2e.dequantize_per_channel.default, q, *place)
    return [q, y], [y]


def _pt2e_token(g: Graphs, x: fx.Node, shape: tuple[int, ...]) -> Made:
    given = g.b.items(g.b.call(pt2e.choose_qparams_per_token_asymmetric.default, x, torch.int8))
    place = (*given, -128, 127, torch.int8)
    q = g.b.call(pt2e.quantize_per_token.default, x, *place)
    y = g.b.call(pt2e.dequantize_per_token.default, q, *place, torch.float32)
    return [q, y, *given], [y]


def _ao(g: Graphs, x: fx.Node, shape: tuple[int, ...]) -> Made:
    block = [g.draw(st.sampled_from([b for b in (1, 2, 4, n) if n % b == 0])) for n in shape]
    counts = tuple(n // b for n, b in zip(shape, block, strict=True))
    given: list[Any] = [g.scale(*counts), g.zero(*counts)]
    if max(block) > 1 and g.draw(st.booleans()):
        limits = (-128, 127, 1e-6, torch.float32, torch.int32)
        call = (ao.choose_qparams_affine.default, x, MappingType.ASYMMETRIC.name, block, torch.int8, *limits)
        given = g.b.items(g.b.call(*call, keepdim=True))
    q = g.b.call(ao.quantize_affine.default, x, block, *given, torch.int8)
    y = g.b.call(ao.dequantize_affine.default, q, block, *given, torch.int8)
    return [q, y], [y]


def _aten(g: Graphs, x: fx.Node, shape: tuple[int, ...]) -> Made:
    axis = g.draw(st.integers(0, len(shape) - 1))
    n = shape[axis]
    if g.draw(st.booleans()):
        y = g.b.call(aten.fake_quantize_per_tensor_affine.default, x, 0.125, 3, -128, 127)
    else:
        given = (g.scale(n), g.zero(n), axis, -128, 127)
        y = g.b.call(aten.fake_quantize_per_channel_affine.default, x, *given)
    return [y], [y]


def _tico(g: Graphs, x: fx.Node, shape: tuple[int, ...]) -> Made:
    element = g.draw(st.sampled_from(("int8", "fp4", "fp6_e2m3", "fp8_e4m3")))
    y = g.b.call(tico.mx_fake_quantize.default, x, element, g.draw(st.integers(-len(shape), len(shape) - 1)))
    return [y], [y]


FOREIGN: tuple[Callable[[Graphs, fx.Node, tuple[int, ...]], Made], ...] = (
    _cast_static, _cast_dynamic, _cast_mx, _pt2e_tensor, _pt2e_channel, _pt2e_token, _ao, _aten, _tico,
)  # fmt: skip


@st.composite
def graphs(draw: DrawFn, foreign: bool) -> tuple[fx.GraphModule, list[Tensor]]:
    made = Graphs(draw, foreign)
    try:
        run(made.module, made.b.examples)
    except RuntimeError as error:
        # The metadata of some operators of torch (roll, flip of nothing) tell other strides than the run has.
        assume("view size is not compatible" not in str(error))
        raise
    return made.module, made.b.examples
