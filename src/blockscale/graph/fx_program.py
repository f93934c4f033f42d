"""`commit`: an overlay's edits written to the GraphModule or ExportedProgram that it was taken from."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputSpec,
    TensorArgument,
)

from blockscale.graph.fx import Model, snapshot
from blockscale.graph.fx_check import check
from blockscale.graph.fx_copy import copied_module
from blockscale.graph.fx_meta import fake_mode
from blockscale.graph.fx_tensors import tensor_of
from blockscale.graph.fx_write import Writer
from blockscale.graph.overlay import Graph
from blockscale.graph.view import Value

__all__ = ["check", "commit", "copied", "snapshot", "with_state"]


def commit(graph: Graph, model: Model) -> Model:
    """The model with the edits of `graph`, a snapshot of it.

    A GraphModule is changed in place and returned. Of an ExportedProgram, whose signature is fixed, a new
    one is returned; it takes over the graph, so the old one is of no use any more.
    """
    if isinstance(model, ExportedProgram):
        return _Program(graph, model).commit() if _changed(graph) else model
    if _changed(graph):
        _write(graph, model, None)
        model.recompile()
    return model


def copied(model: Model) -> Model:
    """The same model with a graph of its own; parameters and buffers are shared."""
    if isinstance(model, ExportedProgram):
        return with_state(model, model.state_dict)
    return copied_module(model)


def with_state(program: ExportedProgram, state: dict[str, Any]) -> ExportedProgram:
    """A copy that has these parameters and buffers, by the same names."""
    signature = copy.deepcopy(program.graph_signature)
    return _program(program, copied_module(program.graph_module), signature, state, program.constants)


def _program(
    old: ExportedProgram, module: fx.GraphModule, signature: ExportGraphSignature,
    state: dict[str, Any], constants: dict[str, Any],
) -> ExportedProgram:  # fmt: skip
    return ExportedProgram(
        root=module, graph=module.graph, graph_signature=signature, state_dict=state, constants=constants,
        range_constraints=dict(old.range_constraints), module_call_graph=list(old.module_call_graph),
        example_inputs=old.example_inputs, verifiers=old.verifiers,
    )  # fmt: skip


def _changed(graph: Graph) -> bool:
    return any(one.changed for one in graph.walk())


def _write(graph: Graph, module: fx.GraphModule, add_constant: Any) -> None:
    results: dict[Any, Any] = {}
    for body in graph.walk():
        if body is graph:
            continue
        if body.changed:
            Writer(body, body.origin, results=results).commit()
            body.origin.recompile()
    if graph.changed:
        Writer(graph, module, add_constant, results).commit()


class _Program:
    """Constants of a program are placeholders, named in its signature."""

    def __init__(self, graph: Graph, program: ExportedProgram) -> None:
        self.graph, self.program = graph, program
        self.module = program.graph_module
        self.state = dict(program.state_dict)
        self.constants = dict(program.constants)
        self.added: list[InputSpec] = []

    def commit(self) -> ExportedProgram:
        _write(self.graph, self.module, self._placeholder)
        specs = [*self.added, *self.program.graph_signature.input_specs]
        specs = self._without_unused(specs)
        signature = ExportGraphSignature(specs, self._outputs())
        self.module.recompile()
        return _program(self.program, self.module, signature, self.state, self.constants)

    def _placeholder(self, value: Value) -> fx.Node:
        assert value.const is not None
        tensor = tensor_of(value.const.fetch())
        target = "".join(c if c.isalnum() or c == "." else "_" for c in value.name) or "constant"
        while target in self.state or target in self.constants:
            target += "_"
        first = next(iter(self.module.graph.nodes))
        with self.module.graph.inserting_before(first):
            made: fx.Node = self.module.graph.placeholder(f"b_{target.replace('.', '_')}")
        made.meta["val"] = _fake(self.module, tensor)
        self.state[target] = tensor
        self.added.insert(0, InputSpec(InputKind.BUFFER, TensorArgument(made.name), target, persistent=True))
        return made

    def _without_unused(self, specs: list[InputSpec]) -> list[InputSpec]:
        """Weights and buffers that nothing reads any more are dropped, with their contents."""
        written = self.program.graph_signature.buffers_to_mutate.values()
        nodes = {node.name: node for node in self.module.graph.nodes if node.op == "placeholder"}
        lifted = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
        was_used = {node.name for node in nodes.values() if node.users}
        kept = []
        for spec in specs:
            if spec.kind in lifted and spec.arg.name not in was_used and spec.target not in written:
                self.module.graph.erase_node(nodes[spec.arg.name])
                continue
            kept.append(spec)
        targets = {spec.target for spec in kept}
        gone = {spec.target for spec in specs} - targets
        for table in (self.state, self.constants):
            for name in gone & table.keys():
                del table[name]
        return kept

    def _outputs(self) -> list[OutputSpec]:
        (output,) = [node for node in self.module.graph.nodes if node.op == "output"]
        specs = self.program.graph_signature.output_specs
        names = [item.name if isinstance(item, fx.Node) else None for item in output.args[0]]
        return [
            replace(spec, arg=replace(spec.arg, name=name)) if name and hasattr(spec.arg, "name") else spec
            for spec, name in zip(specs, names, strict=True)
        ]


def _fake(module: fx.GraphModule, tensor: torch.Tensor) -> Any:
    mode = fake_mode(module.graph)
    return tensor.to("meta") if mode is None else mode.from_tensor(tensor, static_shapes=True)
