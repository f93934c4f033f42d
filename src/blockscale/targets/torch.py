"""A quantized model as a module of torch: it runs where modules run, and is saved as .pt2."""

from __future__ import annotations

import copy
import inspect
import io
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from blockscale.compiler_report import Report
from blockscale.errors import ArgumentError, CombinationError, FileError
from blockscale.files import written_whole
from blockscale.graph.fx_effects import calm_argument, facts_of, is_calm
from blockscale.graph.fx_program import copied, with_state
from blockscale.numerics.arrays import Array
from blockscale.runtime import torch_fused  # noqa: F401  the operators that saved programs hold
from blockscale.runtime.torch_export import arguments, exported
from blockscale.runtime.torch_values import Watched, as_array

__all__ = ["QuantizedModule", "load", "quantized"]

SUFFIX = ".pt2"
_REPORT = "blockscale_report.json"


class QuantizedModule(nn.Module):
    """A model that computes with quantized tensors.

    program  its graph: an ExportedProgram, or a GraphModule where one was given
    report   what was quantized how, what the passes did, and the size

    Its tensors are codes, scales, and copies of what stayed float: nothing is shared with the given model.
    """

    def __init__(self, program: ExportedProgram | fx.GraphModule, report: Report) -> None:
        super().__init__()
        self.report = report
        self.model: nn.Module = program.module() if isinstance(program, ExportedProgram) else program
        self._program = program if isinstance(program, ExportedProgram) else None
        for one in self.modules():
            one.training = False

    @property
    def program(self) -> ExportedProgram | fx.GraphModule:
        if self._program is not None:
            return self._program
        assert isinstance(self.model, fx.GraphModule)
        return self.model

    @property
    def graph(self) -> ExportedProgram | fx.GraphModule:
        """What passes take."""
        return self.program

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)

    def train(self, mode: bool = True) -> QuantizedModule:
        if mode:
            raise CombinationError(
                "a quantized model does not train: its weights are codes. blockscale.fake_quantize_model makes "
                "one that does, and quantize_model then takes what was trained"
            )
        return self

    def requires_grad_(self, requires_grad: bool = True) -> QuantizedModule:
        return self.train() if requires_grad else self

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> QuantizedModule:
        """What `to`, `half`, `cuda`, … do: its graph and its scales hold a dtype and a device."""
        probe = torch.zeros(())
        moved = fn(probe)
        if (moved.dtype, moved.device) != (probe.dtype, probe.device):
            raise CombinationError(
                f"a quantized model stays on its device and keeps its dtype, {moved.dtype} on {moved.device} "
                "is another: change the float model, and quantize that"
            )
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """As .pt2, for `blockscale.load` and torch.export.load."""
        program = self._program
        if program is None:
            raise CombinationError(
                f"{path}: a GraphModule has no signature to be saved with; quantize a module with "
                "example_inputs, or an ExportedProgram"
            )
        if os.path.splitext(path)[1] != SUFFIX:
            raise ArgumentError(
                "path", str(path),
                f"a name that ends in {SUFFIX}. For ONNX give quantize_model what torch.onnx.export makes of the "
                "float model",
            )  # fmt: skip
        with written_whole(path) as temporary, open(temporary, "wb") as file:
            torch.export.save(program, file, extra_files={_REPORT: self.report.to_json()})

    def __reduce__(self) -> Any:
        if self._program is None:
            return QuantizedModule, (self.model, self.report)
        stream = io.BytesIO()
        torch.export.save(self._program, stream)
        return _unpickled, (stream.getvalue(), self.report)

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantizedModule:
        if self._program is None:
            return QuantizedModule(_copied(self.model, memo), self.report)
        return QuantizedModule(_independent(self._program), self.report)


def quantized(model: ExportedProgram | fx.GraphModule, report: Report) -> QuantizedModule:
    """`model` may share tensors with the one that was given; the result does not."""
    if isinstance(model, ExportedProgram):
        return QuantizedModule(_independent(model), report)
    made = _copied(model, {})
    for parameter in made.parameters():
        parameter.requires_grad_(False)
    return QuantizedModule(made, report)


def load(path: str | os.PathLike[str]) -> QuantizedModule:
    """What `save` wrote."""
    extra = {_REPORT: ""}
    try:
        program = torch.export.load(path, extra_files=extra)
    except Exception as error:  # torch says it in many ways
        raise FileError(f"{path}: torch.export cannot load it: {type(error).__name__}: {error}") from error
    if not extra[_REPORT]:
        raise FileError(
            f"{path}: not written by blockscale; torch.export.load reads it, quantize_model takes it"
        )
    return QuantizedModule(program, Report.from_json(extra[_REPORT], str(path)))


def read(path: str | os.PathLike[str]) -> ExportedProgram:
    """Any .pt2."""
    try:
        return torch.export.load(path)
    except Exception as error:
        raise FileError(f"{path}: torch.export cannot load it: {type(error).__name__}: {error}") from error


def values(
    model: ExportedProgram | fx.GraphModule, tensors: Sequence[str], inputs: Any
) -> Iterator[dict[str, Array]]:
    """Of `tensors` (names of nodes), and of the outputs as `output 0`, …, for each batch of inputs."""
    seen: dict[str, Array] = {}
    for returned in Watched(model, tensors, seen.__setitem__).run(inputs):
        found = dict(seen)
        for number, leaf in enumerate(pytree.tree_leaves(returned)):
            if isinstance(leaf, torch.Tensor):
                found[f"output {number}"] = as_array(leaf)
        seen.clear()
        yield found


def evaluated(model: ExportedProgram | fx.GraphModule) -> ExportedProgram | fx.GraphModule:
    """A copy that does what it does in evaluation, where the graph says training: dropout, running statistics."""
    if not any(_evaluation(node) for node in model.graph.nodes):
        return model
    made = copied(model)
    for node in made.graph.nodes:
        if (change := _evaluation(node)) is not None:
            names = [argument.name for argument in node.target._schema.arguments]
            given = dict(zip(names, node.args, strict=False)) | node.kwargs | dict([change])
            count = max(len(node.args), names.index(change[0]) + 1)
            defaults = facts_of(node.target).defaults
            node.args = tuple(given.get(name, defaults.get(name)) for name in names[:count])
            node.kwargs = {name: value for name, value in given.items() if name not in names[:count]}
    if isinstance(made, fx.GraphModule):
        made.recompile()
    return made


def _evaluation(node: fx.Node) -> tuple[str, Any] | None:
    """The argument that has to change, and to what."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    facts = facts_of(node.target)
    change = calm_argument(facts)
    if change is None or is_calm(facts, node):
        return None
    given = dict(zip(facts.names, node.args, strict=False)) | node.kwargs
    without_statistics = "running_mean" in facts.names and given.get("running_mean") is None
    return None if without_statistics else change


def output_names(model: ExportedProgram | fx.GraphModule) -> list[str]:
    """As `values` has them; more than there are."""
    graph = model.graph
    returned = next(node for node in graph.nodes if node.op == "output").args
    return [f"output {number}" for number in range(len(pytree.tree_leaves(returned)))]


def exported_for(module: nn.Module, batch: Any) -> ExportedProgram:
    """The module as it is in evaluation, for inputs like `batch` of other sizes too, where it can."""
    args, kwargs = arguments(batch)
    free = pytree.tree_map(_free, (args, kwargs))
    names = inspect.signature(module.forward).parameters
    shapes = {**dict(zip(names, free[0], strict=False)), **free[1]}
    return exported(module, batch, shapes, evaluate=True)


def _free(leaf: Any) -> Any:
    return dict.fromkeys(range(leaf.dim()), torch.export.Dim.AUTO) if isinstance(leaf, torch.Tensor) else None


def _independent(program: ExportedProgram) -> ExportedProgram:
    """With tensors of its own, that take no gradients; what was one tensor stays one."""
    copies: dict[int, torch.Tensor] = {}
    state = {}
    for name, tensor in program.state_dict.items():
        if id(tensor) not in copies:
            made = tensor.detach().clone()
            is_parameter = isinstance(tensor, nn.Parameter)
            copies[id(tensor)] = nn.Parameter(made, requires_grad=False) if is_parameter else made
        state[name] = copies[id(tensor)]
    return with_state(program, state)


def _copied(module: nn.Module, memo: dict[int, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, of its own pytrees
        return copy.deepcopy(module, memo)


def _unpickled(saved: bytes, report: Report) -> QuantizedModule:
    return QuantizedModule(torch.export.load(io.BytesIO(saved)), report)
