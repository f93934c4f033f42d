"""One of our nodes in a model, as the forms read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from blockscale.errors import CombinationError
from blockscale.forms.quantizers import TENSOR_FORMATS, why_not
from blockscale.numerics.scheme import Numbers, numbers_named

PARAMETERS = ("scale", "zero_point", "tensor_scale")
_INPUTS_OF = {"DynamicQuantize": ("tensor_scale",)}


@dataclass(frozen=True)
class Read:
    """sizes: of the tensor with values, None where not known; dtype: of that tensor; given: by name."""

    node: ir.Node
    numbers: Numbers
    block: tuple[int, ...]
    sizes: tuple[int | None, ...]
    dtype: ir.DataType
    given: dict[str, ir.Value]

    @property
    def op_type(self) -> str:
        return self.node.op_type

    @property
    def x(self) -> ir.Value:
        """The tensor that it reads; codes of a Dequantize."""
        value = self.node.inputs[0]
        assert value is not None
        return value

    @property
    def outputs(self) -> int:
        """How many there are up to the last that something reads."""
        used = [i for i, value in enumerate(self.node.outputs) if value.uses() or value.is_graph_output()]
        return 1 + max(used, default=0)

    def refusal(self, form: str, why: str) -> CombinationError:
        others = "form='custom'" if why_not(self.numbers) else "form='portable' or form='custom'"
        return CombinationError(
            f"{self.op_type} {self.node.name!r}, {self.numbers} in blocks of {self.block}: the {form} form cannot hold "
            f"it: {why}; write it as {others}"
        )


def read(node: ir.Node) -> Read:
    numbers = numbers_named(attribute(node, "numbers"))
    block = tuple(attribute(node, "block", ()))
    names = _INPUTS_OF.get(node.op_type, PARAMETERS)
    given = {
        name: value
        for name, value in zip(names, node.inputs[1:], strict=False)
        if value is not None and value.name
    }
    x = node.inputs[0]
    if node.op_type == "Dequantize":
        sizes = tuple(None if n < 0 else int(n) for n in attribute(node, "shape", ()))
        return Read(node, numbers, block, sizes, ir.DataType(attribute(node, "dtype", 1)), given)
    dtype = None if x is None else _dtype(x)
    if x is None or dtype not in TENSOR_FORMATS:
        raise CombinationError(
            f"{node.op_type} {node.name!r}: the dtype of {'its input' if x is None else repr(x.name)} is not known; "
            "infer the shapes of the model first"
        )
    assert dtype is not None
    return Read(node, numbers, block, _sizes(x, len(block)), dtype, given)


def _dtype(value: ir.Value) -> ir.DataType | None:
    """What was inside a function has no type; operators before a quantize give the type that they take."""
    while value.dtype is None:
        node = value.producer()
        if node is None:
            return None
        for name in ("to", "dtype"):
            if name in node.attributes:
                return ir.DataType(attribute(node, name))
        if node.op_type == "Dequantize":
            return ir.DataType.FLOAT
        before = node.inputs[0] if node.inputs else None
        if before is None:
            return None
        value = before
    return value.dtype


def _sizes(value: ir.Value, rank: int) -> tuple[int | None, ...]:
    if value.shape is None or len(value.shape) != rank:
        return (None,) * rank
    return tuple(dim if isinstance(dim, int) else None for dim in value.shape)


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    found = node.attributes.get(name)
    if found is None:
        return default
    return found.as_string() if found.type == ir.AttributeType.STRING else found.value
