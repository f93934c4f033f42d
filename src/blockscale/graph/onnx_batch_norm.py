"""BatchNormalization behind a product with a constant weight → another weight and bias.

y = (W x + b - mean) · s + shift with s = scale / sqrt(var + epsilon), so W' = W · s for each output channel and
b' = (b - mean) · s + shift: in float64, rounded once to the dtype of the weight. What the model gives then differs
from before by the rounding of the products, as two runtimes do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from blockscale.graph.onnx_names import Names
from blockscale.graph.onnx_steps import Told
from blockscale.graph.onnx_types import array_of

_DTYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_OLDEST = 9  # version of the operators; before it there were two ways to take the channels
_EPSILON = 1e-5  # where the node says none
_LAZY = 1 << 16  # bytes of a weight from which on it is made when it is read


@dataclass(frozen=True)
class _Norm:
    """y = x · factor + offset for each channel, in float64."""

    factor: Any
    mean: Any
    shift: Any


def fold_batch_norms(model: ir.Model) -> list[Told]:
    """In place."""
    if model.opset_imports.get("", 0) < _OLDEST:
        return []
    names, told = Names(model), []
    for graph in (model.graph, *model.graph.subgraphs()):
        for node in list(graph):
            source = node.inputs[0] if node.inputs else None
            if node.op_type != "BatchNormalization" or node.domain != "" or source is None:
                continue
            name, why = str(node.name), _fold(node, graph, model, names)
            did = f"folded into the weight in front of it, {source.name!r} is gone"
            told.append(Told("batch_norm", name, left=why) if why else Told("batch_norm", name, did))
    return told


def _fold(node: ir.Node, graph: ir.Graph, model: ir.Model, names: Names) -> str:
    """Why it cannot be; empty where it was."""
    source, result = node.inputs[0], node.outputs[0]
    product = None if source is None else source.producer()
    if source is None or product is None or product.domain != "" or product.op_type not in _SCALED:
        return "it does not follow a Conv, ConvTranspose, Gemm or MatMul"
    if len(source.uses()) > 1 or source.is_graph_output() or product.graph is not graph:
        return "others read what it normalizes"
    if len([value for value in node.outputs if value.name and (value.uses() or value.is_graph_output())]) > 1:
        return "it is in training"
    mode = node.attributes.get("training_mode")
    if mode is not None and mode.as_int():
        return "it is in training"
    weight = _tensor(product.inputs[1])
    if weight is None or weight.dtype not in _DTYPES:
        return "the weight in front of it is no constant of floats"
    bias = product.inputs[2] if len(product.inputs) > 2 else None
    if bias is not None and _tensor(bias) is None:
        return "the bias in front of it is no constant"
    norm = _norm(node)
    if isinstance(norm, str):
        return norm
    return _folded(product, weight, bias, norm, result, (graph, model, names))


def _norm(node: ir.Node) -> _Norm | str:
    tensors = [_tensor(value) for value in node.inputs[1:5]]
    arrays = [np.asarray(array_of(tensor)).astype(np.float64) for tensor in tensors if tensor is not None]
    if len(arrays) != 4:
        return "its parameters are no constants"
    epsilon = node.attributes.get("epsilon")
    scale, shift, mean, var = arrays
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(
            var + np.float64(np.float32(_EPSILON if epsilon is None else epsilon.as_float()))
        )
    if not (np.isfinite(factor).all() and np.isfinite(mean).all() and np.isfinite(shift).all()):
        return "its parameters are not finite, or a variance is negative"
    return _Norm(factor, mean, shift)


def _folded(
    product: ir.Node,
    weight: ir.TensorProtocol,
    bias: ir.Value | None,
    norm: _Norm,
    result: ir.Value,
    place: Any,
) -> str:
    graph, model, names = place
    op_type, count = product.op_type, len(norm.factor)
    groups = product.attributes.get("group")
    shaped = _SCALED[op_type](
        tuple(weight.shape.numpy()), product, count, 1 if groups is None else groups.as_int()
    )
    if isinstance(shaped, str):
        return shaped
    old = None if bias is None else np.asarray(array_of(_tensor(bias))).astype(np.float64)  # type: ignore[arg-type]
    if op_type == "Gemm" and old is not None:
        beta = product.attributes.get("beta")
        old = old * (1.0 if beta is None else beta.as_float())
    dtype = weight.dtype.numpy()
    fresh = (((0.0 if old is None else old) - norm.mean) * norm.factor + norm.shift).astype(dtype)
    if not np.isfinite(fresh.astype(np.float64)).all():
        return "the bias would not be finite"

    def made() -> Any:
        return (np.asarray(array_of(weight)).astype(np.float64) * shaped(norm.factor)).astype(dtype)

    name = names.value(f"{result.name}_weight")
    inputs = [product.inputs[0], _weight(model, name, weight, made)]
    inputs.append(_register(model, ir.Tensor(fresh, dtype=weight.dtype, name=names.value(f"{name}_bias"))))
    attributes = [one for key, one in product.attributes.items() if key != "beta" or op_type != "Gemm"]
    new = ir.Node(
        "", "Gemm" if op_type == "MatMul" else op_type, inputs, attributes, num_outputs=1, name=product.name,
        metadata_props=dict(product.metadata_props) or None, doc_string=product.doc_string,
    )  # fmt: skip
    _take_place(graph, product, result, new)
    return ""


def _take_place(graph: ir.Graph, product: ir.Node, result: ir.Value, new: ir.Node) -> None:
    """The new node stands where the product stood, and gives the normalized tensor under its name."""
    norm = result.producer()
    assert norm is not None
    out = new.outputs[0]
    name, result.name = result.name, None
    out.name, out.type, out.shape = name, result.type, result.shape
    result.replace_all_uses_with(out, replace_graph_outputs=True)
    graph.insert_before(product, new)
    graph.remove(norm, safe=True)
    graph.remove(product, safe=True)


def _weight(model: ir.Model, name: str, old: ir.TensorProtocol, made: Callable[[], Any]) -> ir.Value:
    """A large one is computed when it is read, so that folding reads no weights."""
    shape = ir.Shape(old.shape.numpy())
    if old.nbytes < _LAZY:
        return _register(model, ir.Tensor(made(), dtype=old.dtype, name=name))

    def fetch() -> ir.TensorProtocol:
        return ir.Tensor(made(), dtype=old.dtype, name=name)

    return _register(model, ir.LazyTensor(fetch, old.dtype, shape, name=name))


def _register(model: ir.Model, tensor: Any) -> ir.Value:
    made = ir.Value(
        name=tensor.name,
        shape=ir.Shape(tensor.shape.numpy()),
        type=ir.TensorType(tensor.dtype),
        const_value=tensor,
    )
    model.graph.register_initializer(made)
    return made


def _tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Of a constant that nobody can give another value."""
    if value is None or value.is_graph_input():
        return None
    node = value.producer()
    if node is not None:
        found = node.attributes.get("value") if node.op_type == "Constant" and node.domain == "" else None
        return None if found is None or found.is_ref() else found.as_tensor()
    return value.const_value


# ------------------------------------------------------------------------------------------ channels

Shaped = Callable[[Any], Any]  # a factor a channel → one that broadcasts to the weight


def _conv(shape: tuple[int, ...], product: ir.Node, count: int, groups: int) -> Shaped | str:
    """Weight [out, in / groups, …]."""
    if shape[0] != count:
        return "its channels are not those of the weight"
    return lambda f: f.reshape(-1, *(1,) * (len(shape) - 1))


def _conv_transpose(shape: tuple[int, ...], product: ir.Node, count: int, groups: int) -> Shaped | str:
    """Weight [in, out / groups, …]: channel g · out / groups + j lies in group g of the inputs."""
    if shape[1] * groups != count or shape[0] % groups:
        return "its channels are not those of the weight"
    tail = (1,) * (len(shape) - 2)
    return lambda f: np.repeat(f.reshape(groups, shape[1]), shape[0] // groups, 0).reshape(*shape[:2], *tail)


def _gemm(shape: tuple[int, ...], product: ir.Node, count: int, groups: int) -> Shaped | str:
    flag = product.attributes.get("transB")
    rows = flag is not None and flag.as_int()
    if shape[0 if rows else 1] != count:
        return "its channels are not those of the weight"
    return lambda f: f[:, None] if rows else f[None, :]


def _matmul(shape: tuple[int, ...], product: ir.Node, count: int, groups: int) -> Shaped | str:
    """Of two matrices it is a Gemm, which has a bias."""
    source = product.inputs[0]
    if source is None or source.shape is None or len(source.shape) != 2 or len(shape) != 2:
        return "the MatMul in front of it is not of two matrices, so its channels are not those of the weight"
    return _gemm(shape, product, count, groups)


_SCALED: dict[str, Callable[[tuple[int, ...], ir.Node, int, int], Shaped | str]] = {
    "Conv": _conv, "ConvTranspose": _conv_transpose, "Gemm": _gemm, "MatMul": _matmul,
}  # fmt: skip
