"""What is known of an ONNX operator before a node is looked at: names of its arguments, defaults, purity."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import onnx
import onnx_ir as ir

from blockscale.graph.onnx_quantizers import CUSTOM

_NEWEST = 1 << 16  # whatever version is the last


@dataclass(frozen=True)
class Facts:
    """inputs    names in order; of the last, if `variadic`, there may be any number."""

    inputs: tuple[str, ...]
    variadic: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)


@lru_cache(maxsize=4096)
def facts_of(domain: str, op_type: str, version: int) -> Facts | None:
    """None of an operator that is not known. Inputs have the names that the newest version gives them."""
    custom = CUSTOM.get((domain, op_type))
    if custom is not None:
        return Facts(custom)
    schema = _schema(domain, op_type, _NEWEST)
    if schema is None:
        return None
    own = _schema(domain, op_type, version) or schema
    last = schema.inputs[-1] if schema.inputs else None
    variadic = last is not None and last.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    defaults = {
        name: onnx.helper.get_attribute_value(attribute.default_value)
        for name, attribute in own.attributes.items()
        if attribute.default_value.type
    }
    text = {name: v.decode() if isinstance(v, bytes) else v for name, v in defaults.items()}
    return Facts(tuple(given.name for given in schema.inputs), variadic, text)


def facts_in(opsets: Mapping[str, int], node: ir.Node) -> Facts | None:
    return facts_of(node.domain, node.op_type, node.version or opsets.get(node.domain, 1))


def _schema(domain: str, op_type: str, version: int) -> Any:
    if not onnx.defs.has(op_type, domain):
        return None
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


_STANDARD = frozenset(("", "ai.onnx.ml"))
_RANDOM = frozenset((
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
))  # fmt: skip
_RANDOM_OF_MICROSOFT = frozenset(("BiasDropout", "BitmaskDropout", "BitmaskBiasDropout", "Sampling"))


def is_random(node: ir.Node, functions: Collection[Any] = ()) -> bool:
    """Whether it may give something else each time, or do something else: of unknown operators nobody knows.

    Calls of `functions` do not count: their nodes are looked at themselves.
    """
    if node.op_identifier() in functions or (node.domain, node.op_type) in CUSTOM:
        return False
    if node.domain == "com.microsoft":
        return node.op_type in _RANDOM_OF_MICROSOFT
    if node.domain not in _STANDARD:
        return True
    if node.op_type == "Dropout":
        return len(node.inputs) > 2 and node.inputs[2] is not None and not _is_false(node.inputs[2])
    return node.op_type in _RANDOM or _schema(node.domain, node.op_type, _NEWEST) is None


def _is_false(value: ir.Value) -> bool:
    tensor = ir.convenience.get_const_tensor(value)
    return tensor is not None and not tensor.numpy().any()
