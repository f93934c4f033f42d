"""ONNX graphs at random, with bodies, quantizers, products and norms: all passes keep every bit."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.numerics.moves import Permute, Reshape, Slice
from blockscale.passes.pipeline import OPTIMIZE
from passes.onnx_graphs import Builder, example
from passes.proof import proven

SCHEMES = ("mxfp4", "mxfp6", "mxint8", "nvfp4", "int8-token", "uint8-g32", "int8")


class Random:
    """A graph at random of moves, quantizers, sums and bodies, on tensors of the same few shapes."""

    def __init__(self, data: st.DataObject, b: Builder, values: list[ir.Value], depth: int = 0) -> None:
        self.draw, self.b, self.values, self.depth = data.draw, b, values, depth
        self.data = data

    def grow(self, steps: int) -> list[ir.Value]:
        for _ in range(steps):
            x = self.draw(st.sampled_from(self.values))
            kinds = ["fake", "pair", "pair", "move", "move", "sum", "again", "product", "norm"]
            kinds += ["branch"] * (self.depth < 2)
            self.values += getattr(self, f"_{self.draw(st.sampled_from(kinds))}")(x)
        return self.values

    def _fake(self, x: ir.Value) -> list[ir.Value]:
        return [self.b.fake(x, self.draw(st.sampled_from(SCHEMES)))]

    def _pair(self, x: ir.Value) -> list[ir.Value]:
        scheme = self.draw(st.sampled_from(SCHEMES))
        q: list[ir.Value | None] = list(self.b.measure(x, scheme))
        sizes = [None if v is None else self.b.sizes(v) for v in q]
        return [
            self.b.dequantize([v if n != [0] else None for v, n in zip(q, sizes, strict=True)], x, scheme)
        ]

    def _move(self, x: ir.Value) -> list[ir.Value]:
        sizes = self.b.sizes(x)
        moves = [Permute((1, 0, 2)), Reshape((2, 2, 2, 64)), Reshape((8, 64)), Permute((0, 2, 1))]
        if len(sizes) != 3:
            moves = [Reshape((4, 2, 64)), Reshape((2, 4, 64))]
        elif self.draw(st.booleans()):
            size = sizes[1]
            assert isinstance(size, int)
            part = self.b.move(x, Slice(1, 0, size // 2))
            return [self.b.call("Concat", part, part, axis=1)]
        return [self.b.move(x, self.draw(st.sampled_from(moves)))]

    def _sum(self, x: ir.Value) -> list[ir.Value]:
        others = [v for v in self.values if self.b.sizes(v) == self.b.sizes(x)]
        return [self.b.call("Add", x, self.draw(st.sampled_from(others)))]

    def _product(self, x: ir.Value) -> list[ir.Value]:
        size = self.b.sizes(x)[-1]
        assert isinstance(size, int)
        weight = self.b.constant(example((size, size), size) * np.float32(0.1))
        scheme, quantized = self.draw(st.sampled_from(SCHEMES)), self.draw(st.booleans())
        return [self.b.call("MatMul", x, self.b.fake(weight, scheme) if quantized else weight)]

    def _norm(self, x: ir.Value) -> list[ir.Value]:
        size = self.b.sizes(x)[-1]
        assert isinstance(size, int)
        axes = {"axes": [-1]} if self.b.opset < 18 else {}
        square = self.b.call("Pow", x, self.b.constant(np.float32(2)))
        mean = self.b.call("ReduceMean", square, *([] if axes else [self.b.ints([-1])]), **axes)
        root = self.b.call("Sqrt", self.b.call("Add", mean, self.b.constant(np.float32(1e-5))))
        normed = self.b.call("Mul", x, self.b.call("Reciprocal", root))
        y = self.b.call("Mul", normed, self.b.constant(example((size,), size)))
        return [y, *self._fake(y)][self.draw(st.integers(0, 1)) :]

    def _again(self, x: ir.Value) -> list[ir.Value]:
        """The same quantizer twice."""
        scheme = self.draw(st.sampled_from(SCHEMES))
        return [self.b.fake(x, scheme), self.b.fake(x, scheme)]

    def _branch(self, x: ir.Value) -> list[ir.Value]:
        which = self.b.constant(np.array(self.draw(st.booleans())))
        bodies = []
        for name in ("then", "other"):
            self.b._count += 1
            inner = Random(
                self.data,
                self.b.body(f"{self.b._prefix}{name}{self.b._count}"),
                list(self.values),
                self.depth + 1,
            )
            grown = inner.grow(self.draw(st.integers(0, 3)))
            fits = [v for v in grown if self.b.sizes(v) == self.b.sizes(x)]
            bodies.append(inner.b.finish(self.draw(st.sampled_from(fits))))
        return [self.b.branch(which, *bodies)]


@settings(max_examples=80)
@given(st.data())
def test_random_graphs_keep_every_bit(data: st.DataObject) -> None:
    b = Builder(data.draw(st.sampled_from((13, 18, 21))))
    values = Random(data, b, [b.input(2, 4, 64), b.input(2, 4, 64)]).grow(data.draw(st.integers(1, 8)))
    outputs = data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=4))
    model = b.done(*outputs)
    names = [value.name for value in model.graph.outputs]
    proof = proven(
        model,
        b.examples,
        stages=data.draw(st.sampled_from((OPTIMIZE, ("cse", "lift", "cse", "sink", "cse")))),
    )
    assert [value.name for value in proof.after.graph.outputs] == names
