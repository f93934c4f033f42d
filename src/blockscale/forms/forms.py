"""A quantized model in one of its forms."""

from __future__ import annotations

import onnx_ir as ir

from blockscale.errors import CombinationError, UnknownNameError
from blockscale.forms import custom, native, portable
from blockscale.forms.body import OLDEST
from blockscale.forms.types import RUNTIMES, least_ir_version
from blockscale.graph.onnx_opset import to_opset

FORMS = ("custom", "portable", "native")


def written(
    model: ir.Model, form: str = "custom", *, runtime: str | None = None, compat: str | None = None
) -> ir.Model:
    """The model itself where nothing has to be written another way, or a copy that shares its weights.

    form     custom: operators of our library. portable: standard operators alone. native: QuantizeLinear and
             DequantizeLinear with ONNX's types
    runtime  of native: whose types, "onnx" or "onnxruntime"
    compat   of custom: "quark" for the names of AMD Quark's operators
    """
    if form not in FORMS:
        raise UnknownNameError("form", form, FORMS)
    if runtime is not None and form != "native":
        raise CombinationError(
            f"runtime={runtime!r} with form={form!r}: only the native form has types to choose"
        )
    if compat is not None and form != "custom":
        raise CombinationError(
            f"compat={compat!r} with form={form!r}: names of operators are of the custom form"
        )
    if compat not in (None, "quark"):
        raise UnknownNameError("compat", compat, ("quark",))
    if form == "native":
        made = native.written(model, runtime or "onnx", to_opset)
    elif form == "portable":
        made = portable.written(to_opset(model, OLDEST))
    else:
        made = custom.written(model, to_opset) if compat is None else custom.as_quark(to_opset(model, OLDEST))
    made.ir_version = max(made.ir_version, least_ir_version(made))
    return made


def read_back(model: ir.Model) -> ir.Model:
    """A model of a file in the custom form, as it was before it was written."""
    custom.read_back(model)
    return model


__all__ = ["FORMS", "RUNTIMES", "read_back", "written"]
