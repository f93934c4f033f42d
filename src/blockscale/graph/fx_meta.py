"""Metadata that a graph lacks: what PT2E's convert inserts has none, though all that it reads has."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


def complete(module: fx.GraphModule) -> None:
    """Give nodes without metadata that of running them on fake tensors, as torch.export gave it the others.

    A graph without any fake tensors keeps none; so does a node that torch cannot run on them.
    """
    lacking = [node for node in module.graph.nodes if "val" not in node.meta and _gives(node)]
    mode = fake_mode(module.graph) if lacking else None
    if mode is None:
        return
    for node in lacking:
        if node.op == "get_attr":
            found = _attribute(module, str(node.target))
            if isinstance(found, torch.Tensor):
                node.meta["val"] = mode.from_tensor(found, static_shapes=True)
        elif all("val" in one.meta for one in node.all_input_nodes):
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda one: one.meta["val"])
            try:
                with mode:
                    node.meta["val"] = node.target(*args, **kwargs)
            except Exception:  # whatever an operator of somebody raises
                continue


def _gives(node: fx.Node) -> bool:
    if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.returns)
    return node.op == "get_attr" or node.target is operator.getitem


def _attribute(module: fx.GraphModule, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part)
    return found


def fake_mode(graph: fx.Graph) -> FakeTensorMode | None:
    for node in graph.nodes:
        found = node.meta.get("val")
        for item in found if isinstance(found, list | tuple) else (found,):
            if isinstance(item, FakeTensor):
                return item.fake_mode
    return None
