"""The native form: QuantizeLinear and DequantizeLinear with types of ONNX for codes and scales.

Weights are DequantizeLinear of constants. A static quantize of float32 is the usual pair of nodes, which
runtimes turn into integer kernels; what makes its scales as it runs is a function of the model that makes them
and holds such a pair. Where a runtime lacks a type, weights take the nearest one that holds all their values,
and activations, which would be rounded to another grid, are functions of the portable form.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from blockscale.errors import UnknownNameError
from blockscale.forms import native_functions, portable
from blockscale.forms.blocks import Blocks
from blockscale.forms.body import OLDEST
from blockscale.forms.model import Edit, inlined, our_nodes, require_opset
from blockscale.forms.native_constants import Constants
from blockscale.forms.nodes import Read, read
from blockscale.forms.quantizers import Spec
from blockscale.forms.types import (
    BLOCKED,
    RUNTIMES,
    Place,
    Runtime,
    code_type,
    has_its_grid,
    has_its_range,
    opset_for,
    place_of,
    scale_type,
)

DOMAIN = "blockscale.native"


def written(
    model: ir.Model, runtime: str = "onnx", to_opset: Callable[[ir.Model, int], ir.Model] | None = None
) -> ir.Model:
    """A copy of the model, for ONNX as it is ("onnx") or for the types of "onnxruntime".

    to_opset  brings a model to the opset that the types need
    """
    if runtime not in RUNTIMES:
        raise UnknownNameError("runtime", runtime, RUNTIMES)
    has = RUNTIMES[runtime]
    model = inlined(model)
    needed = max((_opset(read(node), has) for node in our_nodes(model)), default=1)
    if to_opset is not None:
        model = to_opset(model, needed)
    require_opset(model, needed, "the native form")
    writer = _Writer(model, has)
    for node in our_nodes(model):
        writer.write(read(node))
    writer.done()
    return model


def _placed(found: Read) -> Place:
    place = place_of(found.block, found.sizes)
    if isinstance(place, str):
        raise found.refusal("native", place)
    return place


def _opset(found: Read, runtime: Runtime) -> int:
    types = [code_type(found.numbers, runtime)]
    if found.op_type == "Dequantize":
        types.append(scale_type(found.numbers, runtime))
        return opset_for(_placed(found), *types)
    if not has_its_grid(found.numbers, runtime):
        return OLDEST
    return max(BLOCKED, opset_for(_placed(found), *types))


class _Writer:
    def __init__(self, model: ir.Model, runtime: Runtime) -> None:
        self.runtime = runtime
        self.edit = Edit(model, DOMAIN)
        self.portable = Edit(model, portable.DOMAIN)
        self.constants = Constants(self.edit, runtime)

    def write(self, found: Read) -> None:
        place = _placed(found)
        if found.op_type == "Dequantize":
            self.edit.replace(found.node, *self.constants.decoded(found, place))
        elif found.op_type == "FakeQuantize":
            self._activation(found, place)
        else:
            raise found.refusal(
                "native",
                "its codes are packed bytes that the graph moves; quantize the model with stages=None, where "
                "activations are quantized and dequantized in one place",
            )

    def _activation(self, found: Read, place: Place) -> None:
        if not has_its_grid(found.numbers, self.runtime):
            self.portable.replace(found.node, portable.called(self.portable, found))
            return
        why = native_functions.why_not(found.numbers)
        if why:
            raise found.refusal("native", why)
        pair = self._plain_pair(found, place)
        if pair is not None:
            self.edit.replace(found.node, *pair)
            return
        blocks = Blocks.of(found.block, found.sizes)
        spec = Spec(found.op_type, found.numbers, blocks, found.dtype, tuple(found.given))
        key = (spec, place)
        base = f"FakeQuantize_{found.numbers}_{'x'.join(map(str, found.block))}"
        inputs = [found.x, *found.given.values()]

        def make(domain: str, name: str) -> ir.Function:
            return native_functions.function(spec, place, self.runtime, domain, name)

        self.edit.replace(found.node, self.edit.call(key, base, make, inputs, 1))

    def _plain_pair(self, found: Read, place: Place) -> list[ir.Node] | None:
        """QuantizeLinear and DequantizeLinear of constants, where they say all of it."""
        plain = (
            found.numbers.family == "affine" and "scale" in found.given and found.dtype == ir.DataType.FLOAT
            and found.numbers.scale == "f32" and has_its_range(found.numbers, self.runtime)
        )  # fmt: skip
        more = self.constants.parameters(found, place) if plain else None
        if more is None:
            return None
        codes = code_type(found.numbers, self.runtime)
        to = {} if len(more) == 2 else {"output_dtype": int(codes)}
        q = ir.node("QuantizeLinear", [found.x, *more], {**place.attributes, **to})
        q.outputs[0].type, q.outputs[0].shape = ir.TensorType(codes), found.x.shape
        return [q, ir.node("DequantizeLinear", [q.outputs[0], *more], place.attributes)]

    def done(self) -> None:
        self.edit.done()
        self.portable.done()
