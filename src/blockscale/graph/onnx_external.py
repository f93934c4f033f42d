"""Weights that lie in files of their own: whether these are there, where they may be, and large enough.

They are read late, piece by piece, so all this is asked before work begins.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from blockscale.errors import FileError


def check_external(model: ir.Model, where: str) -> None:
    """FileError: `where` and the weight, if its file is missing, too small, or outside of the model's folder."""
    sizes: dict[str, int] = {}
    for name, tensor in _external(model):
        path = os.fspath(tensor.path)
        if path not in sizes:
            sizes[path] = _size(tensor, path, where, name)
        offset = tensor.offset or 0
        length = tensor.nbytes if tensor.length is None else tensor.length
        if length != tensor.nbytes:
            raise FileError(
                f"{where}: weight {name!r} has {length} bytes in {path}, and its type and shape take {tensor.nbytes}"
            )
        if offset < 0 or offset + length > sizes[path]:
            raise FileError(
                f"{where}: weight {name!r} lies at bytes {offset} to {offset + length} of {path}, which has "
                f"{sizes[path]}: the file is cut off, or of another model"
            )


def _size(tensor: ir.ExternalTensor, path: str, where: str, name: str) -> int:
    """Links count as what they lead to: a model must not make anybody read other files."""
    base = Path(os.fspath(tensor.base_dir) or ".").resolve()
    resolved = Path(path).resolve()
    if base not in resolved.parents:
        raise FileError(
            f"{where}: weight {name!r} is said to lie in {os.fspath(tensor.location)!r}, which is outside of the "
            f"model's folder {base}: put the data beside the model"
        )
    try:
        return resolved.stat().st_size
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        reason = f"there is no file {path}" if missing else f"{path} cannot be read ({error.strerror})"
        raise FileError(f"{where}: {reason}, which has weight {name!r}") from None


def _external(model: ir.Model) -> Iterator[tuple[str, ir.ExternalTensor]]:
    for graph in (model.graph, *model.graph.subgraphs()):
        for name, value in graph.initializers.items():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield name, value.const_value
    for node in model.graph.all_nodes():
        for attribute in node.attributes.values():
            if not attribute.is_ref() and isinstance(attribute.value, ir.ExternalTensor):
                yield str(node.outputs[0].name if node.outputs else node.name), attribute.value
