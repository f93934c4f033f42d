"""A torch module whose nn.Linear and nn.Embedding have weights of codes: it stays the class that it is.

Nothing is exported, so `generate`, caches and control flow work as before; nor is anything fused or moved, and
what is computed between modules stays float.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.compiler_report import Report
from blockscale.errors import ArgumentError, CalibrationError, CombinationError
from blockscale.numerics.layout import bind
from blockscale.numerics.observers import observer
from blockscale.passes.log import Log
from blockscale.recipe import Assignment, Given, Recipe, recipe_of
from blockscale.recipe_rules import Operand
from blockscale.runtime.calibration_data import items
from blockscale.runtime.torch_bound import FORMAT_OF
from blockscale.runtime.torch_export import arguments
from blockscale.runtime.torch_modules import (
    Input,
    QuantizedEmbedding,
    QuantizedLinear,
    Weight,
    quantized_weight,
)
from blockscale.runtime.torch_values import as_array, evaluating
from blockscale.runtime.watch import Watch, shown

__all__ = ["REPORT", "replaced"]

STAGE = "replace"
REPORT = "blockscale_report"  # the attribute that the result has
_KINDS: dict[type[nn.Module], str] = {nn.Linear: "linear", nn.Embedding: "embedding"}
_ADVICE = "give example_inputs, and the whole graph is quantized"


def replaced(
    module: nn.Module, recipe: Given, *, calibration: Any = None, method: Any = "minmax"
) -> nn.Module:
    """A copy in evaluation mode that shares no memory with the module; the float weights are not in it."""
    if hasattr(module, REPORT):
        raise CombinationError("the model is quantized already: give the float model")
    recipe = recipe_of(recipe)
    _check(recipe)
    log = Log()
    found = dict(_found(module, log))
    if not found:
        raise ArgumentError(
            "model", type(module).__name__, f"a module that holds nn.Linear or nn.Embedding; else {_ADVICE}"
        )
    operands = [
        one for path, child in found.items() for one in _operands(path, child, path in _heads(module))
    ]
    given = {(a.operand.node, a.operand.role): a for a in recipe.assign(operands)}
    inputs = _inputs(module, found, given, calibration, method)
    made = _Maker(found, given, inputs)
    # What is made stands in the memo of the copy, so a float weight is copied only where something else holds it.
    memo: dict[int, Any] = {id(found[path]): new for path, new in made.modules()}
    for path, child in found.items():
        _note(log, path, id(child) in memo)
    with torch.inference_mode(False):
        result: nn.Module = copy.deepcopy(module, memo)
    for one in result.modules():
        one.training = False
    sizes = (_bytes(module), _bytes(result))
    result.__dict__[REPORT] = Report.of(recipe.explain(operands), log, *sizes)
    return result


def _check(recipe: Recipe) -> None:
    for number, rule in enumerate(recipe.rules, 1):
        if rule.role is not None and "output" in rule.role:
            raise CombinationError(
                f"recipe {recipe.name!r}, rule {number} ({rule}): without example_inputs only weights, biases and "
                f"inputs of nn.Linear and nn.Embedding are seen, no outputs; {_ADVICE}"
            )
        if rule.between is not None:
            raise CombinationError(
                f"recipe {recipe.name!r}, rule {number} ({rule}): what lies between two tensors is known of "
                f"graphs; {_ADVICE}"
            )


# ------------------------------------------------------------------------------- what is in a module


def _found(module: nn.Module, log: Log) -> Iterator[tuple[str, nn.Module]]:
    """Modules with weights to quantize by their path; one that has several paths has the first."""
    for path, child in module.named_modules():
        hooked = any((child._forward_hooks, child._forward_pre_hooks, child._backward_hooks))
        if isinstance(child, tuple(_KINDS)) and type(child) not in _KINDS:
            log.note(STAGE, path, left=f"a {type(child).__name__}, which may compute otherwise than its base")
        elif type(child) in _KINDS and hooked:
            log.note(STAGE, path, left="it has hooks")
        elif isinstance(child, nn.Embedding) and (child.max_norm is not None):
            log.note(STAGE, path, left="max_norm writes to the weight")
        elif type(child) in _KINDS:
            yield path, child


def _heads(module: nn.Module) -> set[str]:
    """The linear layer that makes the output: what transformers say it is, or the last module of all."""
    named = getattr(module, "get_output_embeddings", None)
    last: Any = named() if callable(named) else None
    if not isinstance(last, nn.Module):
        last = module
        while children := list(last.children()):
            last = children[-1]
    linear = [path for path, child in module.named_modules() if type(child) is nn.Linear]
    heads = {path for path, child in module.named_modules() if child is last and path in linear}
    return heads if len(heads) < len(linear) else set()


def _operands(path: str, child: nn.Module, head: bool) -> Iterator[Operand]:
    kind = _KINDS[type(child)]
    weight, bias = child.weight, getattr(child, "bias", None)
    assert isinstance(weight, Tensor)
    dtype = FORMAT_OF.get(weight.dtype, str(weight.dtype).removeprefix("torch."))
    name = f"{path}." if path else ""

    def one(role: str, index: int, tensor: str, shape: tuple[int | None, ...], **more: Any) -> Operand:
        return Operand(
            path, kind, role, index, f"{name}{tensor}", dtype, shape, kind, head, op_type=kind, **more
        )

    if kind == "linear":
        yield one("input", 0, "input", (None, weight.shape[1]), axis=-1)
    index = 1 if kind == "linear" else 0
    yield one("weight", index, "weight", tuple(weight.shape), axis=-1, channel=0)
    if isinstance(bias, Tensor):
        yield one("bias", 2, "bias", tuple(bias.shape))


# --------------------------------------------------------------------------------------- what is made

_Given = dict[tuple[str, str], Assignment]


class _Maker:
    """Quantized modules; a weight that modules share is quantized once a layout."""

    def __init__(self, found: dict[str, nn.Module], given: _Given, inputs: dict[str, Input]) -> None:
        self.found, self.given, self.inputs = found, given, inputs
        self._weights: dict[tuple[int, str], Weight] = {}

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        for path, child in self.found.items():
            scheme = self.given[path, "weight"].scheme
            if scheme is None:
                if path in self.inputs:
                    raise CombinationError(
                        f"{path!r}: an input that is quantized and a weight that is not; {_ADVICE}"
                    )
                continue
            with torch.no_grad(), torch.inference_mode(False):
                yield path, self._made(path, child, scheme)

    def _made(self, path: str, child: nn.Module, scheme: Any) -> nn.Module:
        assert isinstance(child.weight, Tensor)
        if scheme.numbers.why_no_codes:
            raise CombinationError(f"weight of {path!r}: {scheme.numbers.why_no_codes}; {_ADVICE}")
        key = id(child.weight), str(scheme)
        if key not in self._weights:
            self._weights[key] = quantized_weight(child.weight, scheme)
        weight, dtype = self._weights[key], child.weight.dtype
        if isinstance(child, nn.Embedding):
            return QuantizedEmbedding(weight, child.padding_idx, dtype)
        assert isinstance(child, nn.Linear)
        bias: Tensor | None = child.bias
        at = self.given.get((path, "bias"))
        if bias is not None and at is not None and at.scheme is not None:
            layout = bind(at.scheme, tuple(bias.shape))
            bias = torch.ops.blockscale.fake_quantize.default(
                bias.detach(), str(layout.numbers), layout.block
            )
        return QuantizedLinear(weight, bias, self.inputs.get(path), dtype)


def _inputs(
    module: nn.Module, found: dict[str, nn.Module], given: _Given, calibration: Any, method: Any
) -> dict[str, Input]:
    """How x of each linear layer is quantized; static scales from a run over `calibration`."""
    made = {}
    for (path, role), assignment in given.items():
        child = found[path]
        if role == "input" and assignment.scheme is not None:
            assert isinstance(child, nn.Linear)
            made[path] = Input(assignment.scheme, child.in_features)
    static = {path: one for path, one in made.items() if not one.scheme.dynamic}
    if static:
        if not isinstance(method, str):
            raise ArgumentError("method", method, f"a method's name, for a module as it is; else {_ADVICE}")
        watch = Watch({path: observer(method, one.scheme, name=path) for path, one in static.items()})
        watch.check_source(calibration)
        for path, parameters in watch.finished(_run(module, found, watch, calibration)).items():
            made[path] = Input(made[path].scheme, made[path].length, parameters)
    for path, one in made.items():
        one.check(path)
    return made


def _run(module: nn.Module, found: dict[str, nn.Module], watch: Watch[str], calibration: Any) -> int:
    def seen_by(path: str) -> Callable[..., None]:
        return lambda _, args: watch.see(path, as_array(args[0]))

    hooks = [found[path].register_forward_pre_hook(seen_by(path)) for path in watch.tensors]
    batches = 0
    try:
        with torch.no_grad(), evaluating(module):
            for batch in shown(items(calibration, "calibration"), "calibrating", calibration):
                args, settings = arguments(batch)
                module(*args, **settings)
                batches += 1
    except IndexError as error:
        raise CalibrationError(f"a linear layer is called without an input by place: {_ADVICE}") from error
    finally:
        for hook in hooks:
            hook.remove()
    return batches


def _note(log: Log, path: str, is_made: bool) -> None:
    log.note(
        STAGE,
        path,
        did="weights of codes" if is_made else "",
        left="" if is_made else "no rule for its weight",
    )


def _bytes(module: nn.Module) -> int:
    tensors = {id(one): one for one in (*module.parameters(), *module.buffers())}
    return sum(one.nbytes for one in tensors.values())
