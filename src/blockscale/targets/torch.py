"""A quantized model as a module of torch: it runs where modules run, and is saved as .pt2."""

from __future__ import annotations

import io
import os
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from blockscale.compiler_report import Report
from blockscale.errors import CombinationError, FileError
from blockscale.files import written_whole
from blockscale.runtime import torch_ops  # noqa: F401  the operators that saved programs hold

__all__ = ["QuantizedModule", "load", "quantized"]

_REPORT = "blockscale_report.json"


class QuantizedModule(nn.Module):
    """A model that computes with quantized tensors.

    program  its graph: an ExportedProgram, or a GraphModule where one was given
    report   what was quantized how, what the passes did, and the size
    """

    def __init__(self, program: ExportedProgram | fx.GraphModule, report: Report) -> None:
        super().__init__()
        self.program = program
        self.report = report
        self.model = program.module() if isinstance(program, ExportedProgram) else program
        self.training = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)

    def train(self, mode: bool = True) -> QuantizedModule:
        if mode:
            raise CombinationError(
                "a quantized model does not train: its weights are codes. blockscale.fake_quantize_model makes "
                "one that does, and quantize_model then takes what was trained"
            )
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """As .pt2, for `blockscale.load` and torch.export.load."""
        if not isinstance(self.program, ExportedProgram):
            raise CombinationError(
                f"{path}: a GraphModule has no signature to be saved with; quantize a module with "
                "example_inputs, or an ExportedProgram"
            )
        with written_whole(path) as temporary, open(temporary, "wb") as file:
            torch.export.save(self.program, file, extra_files={_REPORT: self.report.to_json()})

    def __reduce__(self) -> Any:
        if not isinstance(self.program, ExportedProgram):
            return _made, (self.program, self.report)
        stream = io.BytesIO()
        torch.export.save(self.program, stream)
        return _unpickled, (stream.getvalue(), self.report)

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantizedModule:
        make, arguments = self.__reduce__()
        made: QuantizedModule = make(*arguments)
        return made


def quantized(model: ExportedProgram | fx.GraphModule, report: Report) -> QuantizedModule:
    return QuantizedModule(model, report)


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


def _made(program: fx.GraphModule, report: Report) -> QuantizedModule:
    return QuantizedModule(program, report)


def _unpickled(saved: bytes, report: Report) -> QuantizedModule:
    return QuantizedModule(torch.export.load(io.BytesIO(saved)), report)
