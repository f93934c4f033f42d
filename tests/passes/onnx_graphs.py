"""The twin of fx_graphs for ONNX: models built node by node, run and compared before and after.

Methods are those of fx_graphs.Builder; arrays may be of numpy or of torch. Shapes come from onnx's own
inference as each node is made, so sizes may be names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from blockscale.graph.onnx import check
from blockscale.graph.onnx_quantizers import DOMAIN
from blockscale.numerics.arrays import Array
from blockscale.numerics.layout import bind
from blockscale.numerics.moves import Move
from blockscale.numerics.scheme import Numbers, Scheme, numbers_named, scheme_named
from blockscale.runtime.onnx_reference import Runner
from numerics.moving import mixed
from passes.onnx_moves import moved

Types = Sequence[tuple[ir.DataType, Sequence[int | str | None]]]
IR_VERSION = 10


class Builder:
    """An onnx_ir.Graph that grows; every value knows its type and shape at once."""

    def __init__(self, opset: int = 18, domains: Sequence[str] = (), name: str = "graph") -> None:
        self.opset = opset
        opsets = {"": opset, DOMAIN: 1} | dict.fromkeys(domains, 1)
        self.graph = ir.Graph([], [], nodes=[], opset_imports=opsets, name=name)
        self.examples: list[Array] = []
        self._count = 0
        self._prefix = "" if name == "graph" else f"{name}_"

    def input(self, *shape: int, dtype: Any = np.float32, dynamic: Sequence[int] = ()) -> ir.Value:
        """A float input; the sizes of the `dynamic` dimensions are names."""
        return self.given(example(shape, len(self.examples)).astype(dtype), dynamic)

    def given(self, array: Any, dynamic: Sequence[int] = ()) -> ir.Value:
        array = np.asarray(array)
        self.examples.append(array)
        name = f"x{len(self.examples)}"
        sizes = [f"{name}_{i}" if i in dynamic else n for i, n in enumerate(array.shape)]
        value = ir.Value(name=name)
        _describe(value, ir.DataType.from_numpy(array.dtype), sizes)
        self.graph.inputs.append(value)
        return value

    def constant(self, array: Any) -> ir.Value:
        """An initializer."""
        array = np.asarray(array)
        name = f"{self._prefix}buffer{len(self.graph.initializers)}"
        value = ir.Value(name=name, const_value=ir.Tensor(array, name=name))
        _describe(value, ir.DataType.from_numpy(array.dtype), array.shape)
        self.graph.register_initializer(value)
        return value

    def constant_node(self, array: Any) -> ir.Value:
        """A constant as exporters write it."""
        array = np.asarray(array)
        types = [(ir.DataType.from_numpy(array.dtype), array.shape)]
        return self.add("Constant", (), types=types, value=ir.Tensor(array))  # type: ignore[no-any-return]

    def ints(self, numbers: Sequence[int]) -> ir.Value:
        return self.constant(np.array(numbers, dtype=np.int64))

    def call(self, op_type: str, *inputs: ir.Value | None, domain: str = "", **attributes: Any) -> Any:
        """The output of a new node, or a list of them; see `add`."""
        return self.add(op_type, inputs, domain=domain, **attributes)

    def add(
        self, op_type: str, inputs: Sequence[ir.Value | None], *, domain: str = "", outputs: int = 1,
        types: Types | None = None, **attributes: Any,
    ) -> Any:  # fmt: skip
        """`types`: of the outputs, where onnx cannot infer them."""
        node = ir.node(op_type, inputs, attributes, domain=domain, num_outputs=outputs)
        self._count += 1
        node.name = f"{self._prefix}{op_type.lower()}{self._count}"
        for i, output in enumerate(node.outputs):
            output.name = node.name if i == 0 else f"{node.name}_{i}"
        self.graph.append(node)
        for output, (dtype, sizes) in zip(node.outputs, types or self._inferred(node), strict=True):
            _describe(output, dtype, sizes)
        return node.outputs[0] if outputs == 1 else list(node.outputs)

    def _inferred(self, node: ir.Node) -> Types:
        given = [value for value in node.inputs if value is not None]
        kinds = {str(value.name): ir.serde.serialize_value(value).type for value in given}
        tensors = {str(value.name): ir.convenience.get_const_tensor(value) for value in given}
        data = {
            name: ir.serde.serialize_tensor(one)
            for name, one in tensors.items()
            if one is not None and one.nbytes < 1024
        }
        made = onnx.shape_inference.infer_node_outputs(
            onnx.defs.get_schema(node.op_type, self.opset, node.domain), ir.serde.serialize_node(node), kinds,
            data, opset_imports=[onnx.helper.make_opsetid("", self.opset)], ir_version=IR_VERSION,
        )  # fmt: skip
        types = []
        for output in node.outputs:
            found = made[str(output.name)].tensor_type
            sizes = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in found.shape.dim]
            types.append((ir.DataType(found.elem_type), sizes))
        return types

    def move(self, x: Any, move: Move) -> Any:
        """Of one value, or of a list for Cat; a list of values for Split."""
        return moved(self, x, move)

    def sizes(self, x: ir.Value) -> list[int | str | None]:
        assert x.shape is not None
        return [dim if isinstance(dim, int) else dim.value for dim in x.shape]

    # ------------------------------------------------------------------------ quantizers

    def place(
        self, x: ir.Value, scheme: str | Scheme, block: Sequence[int] | None = None
    ) -> tuple[str, list[int]]:
        found = scheme_named(scheme) if isinstance(scheme, str) else scheme
        rank = len(self.sizes(x))
        return str(found.numbers), list(block if block is not None else bind(found, (1,) * rank).block)

    def measure(
        self, x: ir.Value, scheme: str | Scheme, block: Sequence[int] | None = None, *given: Any
    ) -> list[ir.Value]:
        """codes, scale, zero point and tensor scale of a dynamic quantize."""
        spelled, block = self.place(x, scheme, block)
        numbers = numbers_named(spelled)
        scale = _scale_sizes(self.sizes(x), block)
        types = [
            _codes_type(numbers, self.sizes(x)), (_scale_type(numbers), scale),
            (ir.DataType.INT32, scale if numbers.zero_point else [0]),
            (ir.DataType.FLOAT, [] if numbers.tensor_scale else [0]),
        ]  # fmt: skip
        return self.add(  # type: ignore[no-any-return]
            "DynamicQuantize",
            (x, *given),
            domain=DOMAIN,
            outputs=4,
            types=types,
            numbers=spelled,
            block=block,
        )

    def fake(
        self, x: ir.Value, scheme: str | Scheme, block: Sequence[int] | None = None, *given: Any
    ) -> ir.Value:
        spelled, block = self.place(x, scheme, block)
        types = [(_dtype(x), self.sizes(x))]
        return self.add(  # type: ignore[no-any-return]
            "FakeQuantize", (x, *given), domain=DOMAIN, types=types, numbers=spelled, block=block
        )

    def quantize(
        self, x: ir.Value, scheme: str | Scheme, block: Sequence[int] | None, scale: ir.Value, *more: Any
    ) -> ir.Value:
        spelled, block = self.place(x, scheme, block)
        types = [_codes_type(numbers_named(spelled), self.sizes(x))]
        return self.add(  # type: ignore[no-any-return]
            "Quantize", (x, scale, *more), domain=DOMAIN, types=types, numbers=spelled, block=block
        )

    def dequantize(
        self,
        q: Sequence[ir.Value | None],
        like: ir.Value,
        scheme: str | Scheme,
        block: Sequence[int] | None = None,
    ) -> ir.Value:
        """`like` has the shape and the dtype of the result."""
        spelled, block = self.place(like, scheme, block)
        sizes = self.sizes(like)
        shape = [n if isinstance(n, int) else -1 for n in sizes]
        given = list(q)
        while given[-1] is None:
            given.pop()
        return self.add(  # type: ignore[no-any-return]
            "Dequantize", given, domain=DOMAIN, types=[(_dtype(like), sizes)], numbers=spelled, block=block,
            shape=shape, dtype=int(_dtype(like)),
        )  # fmt: skip

    # ------------------------------------------------------------------------ bodies

    def body(self, name: str) -> Builder:
        """For a graph within this one, whose nodes may use values of this one."""
        return Builder(self.opset, name=name)

    def finish(self, *outputs: ir.Value) -> ir.Graph:
        """A value that this graph does not make, or gives already, is given through an Identity."""
        for value in outputs:
            producer = value.producer()
            plain = producer is not None and producer.graph is self.graph and value not in self.graph.outputs
            self.graph.outputs.append(value if plain else self.call("Identity", value))
        return self.graph

    def branch(self, which: ir.Value, then: ir.Graph, other: ir.Graph) -> Any:
        """An If of two finished bodies whose outputs have the same types."""
        types = [(_dtype(value), self.sizes(value)) for value in then.outputs]
        return self.add("If", (which,), outputs=len(types), types=types, then_branch=then, else_branch=other)

    def done(self, *outputs: ir.Value) -> ir.Model:
        self.finish(*outputs)
        model = ir.Model(self.graph, ir_version=IR_VERSION, producer_name="test")
        check(model, "building")
        return model


def _describe(value: ir.Value, dtype: ir.DataType, sizes: Sequence[int | str | None]) -> None:
    value.type, value.shape = ir.TensorType(dtype), ir.Shape(sizes)


def _dtype(value: ir.Value) -> ir.DataType:
    assert value.dtype is not None
    return value.dtype


def _codes_type(
    numbers: Numbers, sizes: Sequence[int | str | None]
) -> tuple[ir.DataType, list[int | str | None]]:
    element = numbers.element_format
    sizes = list(sizes)
    if element.packed and sizes:
        last = sizes[-1]
        sizes[-1] = -(-last * element.bits // 8) if isinstance(last, int) else None
    return ir.DataType.from_numpy(np.dtype(element.storage_dtype)), sizes


def _scale_type(numbers: Numbers) -> ir.DataType:
    names = {"f32": ir.DataType.FLOAT, "bf16": ir.DataType.BFLOAT16, "f16": ir.DataType.FLOAT16}
    return names.get(numbers.scale, ir.DataType.UINT8)


def _scale_sizes(sizes: Sequence[int | str | None], block: Sequence[int]) -> list[int | str | None]:
    return [
        1 if b == 0 else -(-n // b) if isinstance(n, int) else n if b == 1 else None
        for n, b in zip(sizes, block, strict=True)
    ]


def example(shape: Sequence[int], seed: int = 0) -> Array:
    """Many magnitudes, halves, zeros of both signs, NaN and Inf."""
    return mixed(seed, tuple(shape))


# -------------------------------------------------------------------------- run, compare, check


def run(model: ir.Model, inputs: Sequence[Any]) -> list[Array]:
    runner = Runner(model)
    return list(runner.run(dict(zip(runner.inputs, map(np.asarray, inputs), strict=True))).values())


def assert_equal(a: Sequence[Array], b: Sequence[Array]) -> None:
    """The same bits; any NaN equals any other."""
    assert len(a) == len(b)
    for i, (one, other) in enumerate(zip(a, b, strict=True)):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), f"result {i}"
        assert equal(one, other), f"result {i}:\n{one}\n{other}"


def equal(a: Array, b: Array) -> bool:
    nan = _is_nan(a) & _is_nan(b)
    return bool((nan | (_bits(a) == _bits(b))).all())


def _is_nan(a: Array) -> Array:
    return a != a


def _bits(a: Array) -> Array:
    return np.ascontiguousarray(a).reshape(a.shape).view(f"u{a.itemsize}")


def assert_sound(model: ir.Model, *inputs: Sequence[Any]) -> None:
    """onnx's checker passes, and every value has the type and shape that it says when the model runs."""
    check(model, "writing")
    runner = Runner(model)
    for given in inputs:
        values = runner.values(dict(zip(runner.inputs, map(np.asarray, given), strict=True)))
        sizes: dict[str, int] = {}
        for node in model.graph:
            for value in node.outputs:
                if value.name:
                    _assert_described(value, values[value.name], sizes)


def _assert_described(value: ir.Value, array: Any, sizes: dict[str, int]) -> None:
    assert value.type is not None and value.shape is not None, f"{value.name} has no type or shape"
    assert value.dtype is not None and array.dtype == value.dtype.numpy(), f"{value.name}: {array.dtype}"
    assert len(value.shape) == array.ndim, f"{value.name}: {array.shape} is not {value.shape}"
    for dim, n in zip(value.shape, array.shape, strict=True):
        if isinstance(dim, int):
            assert dim == n, f"{value.name}: {array.shape} is not {value.shape}"
        elif dim.value is not None:
            assert sizes.setdefault(dim.value, n) == n, (
                f"{value.name}: {dim.value} is {sizes[dim.value]} and {n}"
            )


def op_types(model: ir.Model) -> list[str]:
    """Names of operators in order, those of bodies after the node that holds them."""
    return [node.op_type for node in model.graph.all_nodes()]
