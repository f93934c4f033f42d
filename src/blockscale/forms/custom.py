"""The custom form: one node a quantize, of our operator library, or of AMD Quark's names where that is asked for.

A file with Quark's names runs with either library: what its operators have no name for, the decoding of packed
weights, is a function of standard operators.
"""

from __future__ import annotations

import onnx_ir as ir

from blockscale.forms import portable
from blockscale.forms.body import OLDEST
from blockscale.forms.model import Edit, inlined, our_nodes, require_opset
from blockscale.forms.nodes import read
from blockscale.graph.onnx_quantizers import quark_operator

QUARK = "com.amd.quark"


def written(model: ir.Model) -> ir.Model:
    """As the model is: its quantizers are operators of the library."""
    return model


def as_quark(model: ir.Model) -> ir.Model:
    """A copy of the model whose quantizers are those of AMD Quark."""
    model = inlined(model)
    require_opset(model, OLDEST, "packed weights beside Quark's operators")
    edit = Edit(model, portable.DOMAIN)
    for node in our_nodes(model):
        found = read(node)
        if node.op_type == "Dequantize":
            edit.replace(node, portable.called(edit, found))
            continue
        said = (
            quark_operator(found.numbers, found.block) if node.op_type == "FakeQuantize"
            else "its operators quantize and dequantize at once"
        )  # fmt: skip
        if isinstance(said, str):
            raise found.refusal("AMD Quark's custom", said)
        op_type, attributes = said
        edit.replace(node, ir.node(op_type, [found.x], attributes, domain=QUARK))
    model.opset_imports[QUARK] = 1
    edit.done()
    return model
