"""The portable form: our quantizers as functions of the model, in standard operators alone.

It runs on stock ONNX Runtime (opset 18 and later) and on onnx's reference evaluator. Constants are those of
the custom form: codes stay packed, and a runtime that folds constants decodes weights once, when it loads.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from blockscale.forms.blocks import Blocks
from blockscale.forms.body import OLDEST
from blockscale.forms.model import Edit, inlined, our_nodes, require_opset
from blockscale.forms.nodes import Read, read
from blockscale.forms.quantizers import Spec, function, why_not

DOMAIN = "blockscale.portable"


def written(model: ir.Model) -> ir.Model:
    """A copy of the model; weights are shared."""
    model = inlined(model)
    require_opset(model, OLDEST, "the portable form")
    edit = Edit(model, DOMAIN)
    for node in our_nodes(model):
        found = read(node)
        edit.replace(node, called(edit, found))
    edit.done()
    return model


def called(edit: Edit, found: Read) -> ir.Node:
    """A call of the function that does what the node does."""
    why = why_not(found.numbers)
    if why:
        raise found.refusal("portable", why)
    spec = _spec(found)
    base = f"{spec.op_type}_{spec.numbers}_{'x'.join(map(str, found.block))}"
    inputs = [found.x, *found.given.values()]
    return edit.call(spec, base, lambda domain, name: function(spec, domain, name), inputs, spec.outputs)


def _spec(found: Read) -> Spec:
    last, element = None, found.numbers.element_format
    if found.op_type == "Dequantize" and element.packed:
        size = found.sizes[-1] if found.sizes else 1
        whole = bool(found.sizes) and (size is None or size * element.bits % 8 == 0)
        last = None if whole else size
    blocks = Blocks.of(found.block, found.sizes)
    small = found.op_type == "Dequantize" and _is_small(found)
    given = tuple(found.given)
    return Spec(found.op_type, found.numbers, blocks, found.dtype, given, last, found.outputs, small)


def _is_small(found: Read) -> bool:
    """Whether its scales are constants with which the greatest code is far from overflow."""
    scale, tensor_scale = found.given["scale"].const_value, found.given.get("tensor_scale")
    if (
        scale is None
        or found.dtype != ir.DataType.FLOAT
        or (tensor_scale and tensor_scale.const_value is None)
    ):
        return False
    fmt, element = found.numbers.scale_format, found.numbers.element_format
    stored = np.asarray(scale.numpy())
    values = fmt.decode(stored) if fmt.bits == 8 else np.abs(stored.astype(np.float64))
    if tensor_scale is not None and tensor_scale.const_value is not None:
        values = values * abs(float(np.asarray(tensor_scale.const_value.numpy())))
    widest = element.max if element.is_float else 2.0**element.bits
    return bool(np.max(np.nan_to_num(values, nan=0), initial=0) * 2 * widest < np.finfo(np.float32).max)
