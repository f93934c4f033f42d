"""The portable form: our quantizers as functions of the model, in standard operators alone.

It runs on stock ONNX Runtime (opset 18 and later) and on onnx's reference evaluator. Constants are those of
the custom form: codes stay packed, and a runtime that folds constants decodes weights once, when it loads.
"""

from __future__ import annotations

import re
from typing import Any

import onnx_ir as ir

from blockscale.errors import CombinationError
from blockscale.forms.blocks import Blocks
from blockscale.forms.body import OLDEST
from blockscale.forms.model import Replaced, attribute, inlined, our_nodes, require_opset
from blockscale.forms.quantizers import TENSOR_FORMATS, Spec, function, why_not
from blockscale.numerics.scheme import numbers_named

DOMAIN = "blockscale.portable"
_INPUTS = ("scale", "zero_point", "tensor_scale")
_INPUTS_OF = {"DynamicQuantize": ("tensor_scale",)}


def written(model: ir.Model) -> ir.Model:
    """A copy of the model; weights are shared."""
    model = inlined(model)
    require_opset(model, OLDEST, "the portable form")
    functions: dict[Spec, ir.Function] = {}
    replaced = Replaced(model)
    for node in our_nodes(model):
        spec = _spec(node)
        if spec not in functions:
            functions[spec] = function(spec, DOMAIN, _name(spec, functions))
        made = functions[spec]
        given = [value for value in node.inputs if value is not None and value.name != ""]
        replaced.by(node, ir.node(made.name, given, domain=DOMAIN, num_outputs=len(node.outputs)))
    for made in functions.values():
        model.functions[made.identifier()] = made
    if functions:
        model.opset_imports[DOMAIN] = 1
    replaced.done()
    return model


def _spec(node: ir.Node) -> Spec:
    where = f"{node.op_type} {node.name!r}"
    numbers = numbers_named(attribute(node, "numbers"))
    why = why_not(numbers)
    if why:
        raise CombinationError(
            f"{where}, {numbers}: the portable form cannot hold it: {why}; write it as form='custom'"
        )
    block = tuple(attribute(node, "block", ()))
    last, sizes = None, _sizes(node.inputs[0], len(block))
    if node.op_type == "Dequantize":
        shape = [None if n < 0 else int(n) for n in attribute(node, "shape", ())]
        sizes = shape
        last = shape[-1] if shape else 1
        packed = numbers.element_format.packed
        whole = last is not None and shape and last * numbers.element_format.bits % 8 == 0
        last = last if packed and not whole else None
        dtype = ir.DataType(attribute(node, "dtype", 1))
    else:
        found = node.inputs[0].dtype if node.inputs[0] is not None else None
        if found not in TENSOR_FORMATS:
            raise CombinationError(
                f"{where}: the dtype of {_named(node.inputs[0])} is not known; infer the shapes of the model first"
            )
        assert found is not None
        dtype = found
    names = _INPUTS_OF.get(node.op_type, _INPUTS)
    given = tuple(
        name
        for name, value in zip(names, node.inputs[1:], strict=False)
        if value is not None and value.name != ""
    )
    return Spec(node.op_type, numbers, Blocks.of(block, sizes), dtype, given, last)


def _sizes(value: ir.Value | None, rank: int) -> list[int | None]:
    if value is None or value.shape is None or len(value.shape) != rank:
        return [None] * rank
    return [dim if isinstance(dim, int) else None for dim in value.shape]


def _named(value: ir.Value | None) -> str:
    return "its input" if value is None else repr(value.name)


def _name(spec: Spec, taken: dict[Spec, Any]) -> str:
    """`FakeQuantize_mxfp4_1x32`, then with a number."""
    base = f"{spec.op_type}_{spec.numbers}_{'x'.join(map(str, spec.blocks.block))}"
    base = re.sub(r"\W+", "_", base).strip("_")
    names = {one.name for one in taken.values()}
    name, count = base, 1
    while name in names:
        count += 1
        name = f"{base}_{count}"
    return name
