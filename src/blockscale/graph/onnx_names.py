"""Names of values and nodes, unique in all graphs of a model, bodies included."""

from __future__ import annotations

import re

import onnx_ir as ir


class Names:
    def __init__(self, model: ir.Model) -> None:
        self.values: set[str] = set()
        self.nodes: set[str] = set()
        for graph in (model.graph, *model.graph.subgraphs()):
            self.values.update(value.name or "" for value in graph.inputs)
            self.values.update(graph.initializers)
            for node in graph:
                self.nodes.add(node.name or "")
                self.values.update(value.name or "" for value in node.outputs)
        self._last: dict[tuple[int, str], int] = {}

    def value(self, hint: str) -> str:
        return self._free(self.values, hint)

    def node(self, hint: str) -> str:
        return self._free(self.nodes, hint)

    def _free(self, names: set[str], hint: str) -> str:
        base = name = hint or "value"
        if name in names:
            base = re.sub(r"_\d+$", "", base)
        key = id(names), base
        count = self._last.get(key, 0)
        while name in names:
            count += 1
            name = f"{base}_{count}"
        self._last[key] = count
        names.add(name)
        return name
