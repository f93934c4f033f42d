"""The custom form: one node a quantize, of our operator library, or of AMD Quark's names where that is asked for.

Weights of convolutions are decoded by functions of standard operators. A runtime that folds constants does that
when it loads; it does so with none of other people's operators, and its fast convolutions want constants.

A file with Quark's names runs with either library: what its operators have no name for, the decoding of packed
weights, is such a function too.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import onnx_ir as ir

from blockscale.errors import GraphError
from blockscale.forms import portable
from blockscale.forms.body import OLDEST
from blockscale.forms.model import Edit, inlined, our_nodes, require_opset
from blockscale.forms.nodes import PARAMETERS, attribute, read
from blockscale.forms.quantizers import why_not
from blockscale.graph.onnx_quantizers import DOMAIN, quark_operator

QUARK = "com.amd.quark"
FOLDED = "blockscale.folded"  # the domain of those functions, which `read_back` makes Dequantize again
_PRODUCTS = ("Conv", "ConvTranspose")


def written(model: ir.Model, to_opset: Callable[[ir.Model, int], ir.Model]) -> ir.Model:
    """The model itself where it has no packed weights of convolutions, or a copy that shares its weights."""
    if not any(_is_folded(node) for node in our_nodes(model)):
        return model
    model = to_opset(model.clone(), OLDEST)
    require_opset(model, OLDEST, "weights of convolutions")
    edit = Edit(model, FOLDED)
    for node in our_nodes(model):
        if _is_folded(node):
            edit.replace(node, portable.called(edit, read(node)))
    edit.done()
    return model


def _is_folded(node: ir.Node) -> bool:
    """Whether it makes weights of convolutions, also by way of a Transpose, and of constants."""
    if node.op_type != "Dequantize":
        return False
    users = [user for user, _ in node.outputs[0].uses()]
    for user in list(users):
        if user.op_type == "Transpose":
            users.remove(user)
            users += [after for after, _ in user.outputs[0].uses()]
    constant = all(value is None or value.const_value is not None for value in node.inputs)
    known = all(n >= 0 for n in attribute(node, "shape", ()))
    convolves = bool(users) and all(user.op_type in _PRODUCTS and user.domain == "" for user in users)
    return constant and known and convolves and not why_not(read(node).numbers)


def read_back(model: ir.Model) -> None:
    """What `written` made functions is Dequantize again, in place."""
    made = {key: function for key, function in model.functions.items() if function.domain == FOLDED}
    if not made:
        return
    for node in list(model.graph.all_nodes()):
        function = made.get(node.op_identifier())
        if function is not None:
            _restored(node, function)
    for key in made:
        del model.functions[key]
    model.opset_imports.pop(FOLDED, None)
    model.opset_imports[DOMAIN] = 1


def _restored(node: ir.Node, function: ir.Function) -> None:
    told, y = function.metadata_props, node.outputs[0]
    if y.shape is None or y.dtype is None or node.graph is None:
        raise GraphError(f"{node.name!r}: the file does not say the shape of the weight that it decodes")
    attributes = {
        "numbers": told["numbers"], "block": json.loads(told["block"]), "shape": list(y.shape.numpy()),
        "dtype": int(y.dtype),
    }  # fmt: skip
    names = [value.name for value in function.inputs]
    given = dict(zip(names, node.inputs, strict=True))
    inputs = [given.get(name) for name in ("codes", *PARAMETERS)]
    while inputs[-1] is None:
        inputs.pop()
    made = ir.node("Dequantize", inputs, attributes, domain=DOMAIN, name=node.name)
    node.graph.insert_before(node, made)
    new, name = made.outputs[0], y.name
    new.shape, new.type, y.name, new.name = y.shape, y.type, None, name
    y.replace_all_uses_with(new, replace_graph_outputs=True)
    node.graph.remove(node, safe=True)


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
