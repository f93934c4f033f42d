"""Copies of FX graphs that keep every name, and own the bodies of control flow."""

from __future__ import annotations

import copy
from typing import Any

from torch import fx


def copied_module(module: fx.GraphModule) -> fx.GraphModule:
    """The same module with a graph of its own, and bodies of its own; all else is shared."""
    graph, _ = copied_graph(module.graph)
    made = fx.GraphModule(module, graph, type(module).__name__)
    made.meta = dict(module.meta)
    for target in {str(node.target) for node in graph.nodes if node.op == "get_attr"}:
        path, _, name = target.rpartition(".")
        parent = made.get_submodule(path)
        body = getattr(parent, name, None)
        if isinstance(body, fx.GraphModule) and parent is not module.get_submodule(path):
            setattr(parent, name, copied_module(body))
    made.train(module.training)
    return made


def copied_graph(graph: fx.Graph) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """A copy, and its nodes by those of the original.

    copy.deepcopy warns where a codegen holds the tree of arguments, and renames: signatures know
    placeholders by name, and "input" is one that torch.fx itself would not give.
    """
    made = fx.Graph(tracer_cls=graph._tracer_cls)
    node_of: dict[fx.Node, fx.Node] = {}
    returned: Any = made.graph_copy(graph, node_of, return_output_node=True)
    made.set_codegen(copy.copy(graph._codegen))
    if returned is not None:
        value, old = returned
        output = made.output(value, type_expr=old.type)
        output.meta = copy.copy(old.meta)
    for node, copied in node_of.items():
        if copied.name != node.name:
            copied.name = node.name
    return made, node_of
