"""`Body`: the nodes of a model-local function, written as expressions.

    b = Body(["x", "scale"])
    y = b("Mul", b("Round", b("Div", b["x"], b["scale"])), b["scale"])
    function = b.function("blockscale.portable", "example", {"y": y}, "an example", {})

Operators are those that mean the same from opset 18 on: ONNX Runtime inlines a function into a model of
whatever opset the model has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

OLDEST = 18  # BitwiseAnd; Pad with axes; axes of reductions as an input

Number = float | int | bool


class Body:
    """Inputs are had by name: `b["x"]`; a call adds a node and gives its output."""

    def __init__(self, inputs: Sequence[str]) -> None:
        self.inputs = {name: ir.Value(name=name) for name in inputs}
        self._nodes: list[ir.Node] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}

    def __getitem__(self, name: str) -> ir.Value:
        return self.inputs[name]

    def __call__(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        node = ir.node(op_type, list(inputs), attributes)
        self._nodes.append(node)
        (output,) = node.outputs
        return output

    # ------------------------------------------------------------------------------ constants

    def array(self, array: Any) -> ir.Value:
        """A constant; equal ones are one."""
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self("Constant", value=ir.Tensor(array))
        return self._constants[key]

    def f32(self, value: Any) -> ir.Value:
        return self.array(np.array(value, np.float32))

    def i32(self, value: Any) -> ir.Value:
        return self.array(np.array(value, np.int32))

    def i64(self, value: Any) -> ir.Value:
        return self.array(np.array(value, np.int64))

    def cast(self, x: ir.Value, to: ir.DataType) -> ir.Value:
        return self("Cast", x, to=int(to))

    # ------------------------------------------------------------------------------ idioms

    def where(self, condition: ir.Value, yes: ir.Value, no: ir.Value) -> ir.Value:
        """A -0 must be in `no`: ONNX Runtime's Where gives +0 for one in `yes`. It also takes a Not away by
        exchanging the two, so a condition with a -0 must not be one.
        """
        return self("Where", condition, yes, no)

    def any_of(self, *conditions: ir.Value) -> ir.Value:
        found, *others = conditions
        for one in others:
            found = self("Or", found, one)
        return found

    def size_of(self, x: ir.Value, axis: int) -> ir.Value:
        """int64[1]: the length of a dimension, counted from 0."""
        return self("Shape", x, start=axis, end=axis + 1)

    def reshaped(self, x: ir.Value, *parts: ir.Value) -> ir.Value:
        """To sizes that are put together of int64 vectors; 0 is a size."""
        return self("Reshape", x, self("Concat", *parts, axis=0), allowzero=1)

    # ------------------------------------------------------------------------------ done

    def function(
        self, domain: str, name: str, outputs: dict[str, ir.Value], said: str, told: dict[str, str]
    ) -> ir.Function:
        """With the nodes that lead to `outputs` alone; an input that is given back goes through an Identity.

        said  for people; told  for programs: what of ours it stands for
        """
        results: list[ir.Value] = []
        for label, value in outputs.items():
            taken = value.producer() is None or any(value is one for one in results)
            value = self("Identity", value) if taken else value
            value.name = label
            results.append(value)
        kept = self._leading_to(results)
        count = 0
        for node in kept:
            for value in node.outputs:
                if not any(value is one for one in results):
                    value.name, count = f"v{count}", count + 1
        graph = ir.Graph(
            list(self.inputs.values()), results, nodes=kept, opset_imports={"": OLDEST}, name=name
        )
        graph.doc_string = said
        made = ir.Function(domain, name, graph=graph, attributes=[])
        made.metadata_props.update(told)
        return made

    def _leading_to(self, results: Sequence[ir.Value]) -> list[ir.Node]:
        needed: set[ir.Node] = set()
        pending = [value.producer() for value in results]
        while pending:
            node = pending.pop()
            if node is None or node in needed:
                continue
            needed.add(node)
            pending += [value.producer() for value in node.inputs if value is not None]
        return [node for node in self._nodes if node in needed]
