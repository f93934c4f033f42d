"""Fused operators: the bits of the graph without fusion, for every operator, any layout, and bad input.

The products that have kernels are those of test_torch_products.py; here they decode as all others do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from blockscale import errors
from blockscale.graph.fused import FUSED_OPS, OUT, ROWS, fused_name, row_named, takes
from blockscale.graph.fused_fields import FLOAT, Fields, arguments_of, fields_of, numbers_of
from blockscale.graph.torch_names import overload_named
from blockscale.numerics.layout import Layout
from blockscale.numerics.scheme import Numbers, numbers_named
from blockscale.runtime.torch_fused_fields import compact, full_rank
from conformance.core_cases import all_numbers, thinned
from runtime.fused_cases import (
    CASES,
    Case,
    Quantized,
    as_codes,
    as_dynamic,
    as_is,
    call,
    layout_for,
    ops,
    place_of,
)
from runtime.torch_cases import equal

# What operands are quantized to, in turn; the blocks of 5, 12 and 24 and the odd rows leave much open.
OPERANDS = (
    "mxfp4", "int8", "mxint8", "nvfp4", "uint8-channel", "mxfp6", "int4-g12", "fp8_e4m3",
    "uint4-token", "mxfp8_e5m2", "int8-g24,scale=bf16", "fp6_e2m3,scale=fp8_e4m3,tensor_scale=true",
)  # fmt: skip
OUTPUTS = ("mxfp8", "uint8", "nvfp4", "int4-g12", "int8-channel", "mxfp4")


pytestmark = pytest.mark.usefixtures("decoding")


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    torch.manual_seed(0)


def quantized_in_turn(case: Case, turn: int, dtype: torch.dtype) -> Iterator[Quantized]:
    """Operands of a case as codes, floats and dynamic operands in turn."""
    for i, x in enumerate(case.operands(dtype)):
        name = OPERANDS[(3 * turn + i) % len(OPERANDS)]
        if x is None or (turn + i) % 4 == 3:
            yield as_is(x)
        else:
            yield as_dynamic(x, name) if (turn + i) % 4 == 2 else as_codes(x, name)


def all_equal(got: Sequence[Tensor], want: Sequence[Tensor]) -> bool:
    return len(got) == len(want) and all(map(equal, got, want))


def results_of(case: Case, operands: list[Quantized]) -> tuple[Tensor, ...]:
    found = case.floats(*(one.floats for one in operands))
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bits_of_the_graph_without_fusion(case: Case) -> None:
    row = row_named(case.name)
    for turn, dtype in enumerate((torch.float32, torch.bfloat16, torch.float32, torch.float16)):
        operands = list(quantized_in_turn(case, turn, dtype))
        want, *also = results_of(case, operands)
        if row.output != "codes":
            operator, args, settings = call(case.name, operands, case.rest, compute=dtype)
            assert equal(operator(*args, **settings), want)
        if row.output == "float":
            continue
        layout = layout_for(OUTPUTS[turn % len(OUTPUTS)], want.shape)
        chosen = ops.dynamic_quantize(want, *place_of(layout))
        operator, args, settings = call(case.name, operands, case.rest, fields_of(layout), dtype)
        assert all_equal(operator(*args, **settings), (*chosen, *also))
        out = fields_of(layout, *chosen[1:])
        operator, args, settings = call(case.name, operands, case.rest, out, dtype)
        got = operator(*args, **settings)
        assert all_equal(got if also else (got,), (chosen[0], *also))


def test_every_operator_has_a_case() -> None:
    assert {case.name for case in CASES} == {row.name for row in ROWS}


def test_other_operators_of_the_same_bits() -> None:
    """`same` of the table: what a graph may hold instead of the row's own operator."""
    x, w, b = torch.randn(3, 40), torch.randn(40), torch.randn(40)
    aten = torch.ops.aten
    assert equal(aten.native_layer_norm(x, [40], w, b, 1e-5)[0], aten.layer_norm(x, [40], w, b, 1e-5))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        y = torch.randn(1000).to(dtype)
        for name in ("add", "sub", "mul"):
            packet = getattr(aten, name)
            assert equal(packet.Tensor(y, 1.3), packet.Scalar(y, 1.3))


# ------------------------------------------------------------------------------------ the schemas


def test_schemas_are_those_of_aten_with_fields() -> None:
    """The arguments beside tensors have ATen's names, types and defaults, in ATen's order."""
    for row in ROWS:
        operator = overload_named(row.operator())
        names = [a.name for a in operator._schema.arguments]
        count = len(row.operands)
        assert names[:count] == [one.name for one in row.operands]
        fields = [f"{n}_{f}" for n in (*names[:count], OUT)
                  for f in ("scale", "zero_point", "dtype", "quant_min", "quant_max")]  # fmt: skip
        assert names[count : count + len(fields)] == fields
        if not row.aten:
            continue
        theirs = {a.name: a for a in overload_named(row.aten)._schema.arguments}
        rest = [a for a in operator._schema.arguments if a.name in (*row.rest_names, *row.rest_tensors)]
        own = [a for a in rest if a.name != "form"]
        in_order = [name for name in theirs if name in {a.name for a in own}]
        assert [a.name for a in own] == in_order or row.name.startswith("conv_transpose")
        for argument in own:
            their = theirs[argument.name]
            assert str(argument.type) == str(their.type), (row.name, argument.name)
            assert argument.has_default_value() <= their.has_default_value() or argument.name == "eps"
            if argument.has_default_value() and argument.name != "eps":
                assert argument.default_value == their.default_value, (row.name, argument.name)
        left = set(theirs) - {a.name for a in own} - {one.aten for one in row.operands} - set(row.ignored)
        assert all(theirs[name].has_default_value() for name in left), (row.name, left)


def test_names() -> None:
    assert fused_name("linear") == "blockscale.linear.default"
    assert fused_name("add.Scalar", dynamic=True) == "blockscale.add.Scalar_dynamic"
    assert fused_name("fft") is None
    for operator in FUSED_OPS:
        assert str(overload_named(operator)) == operator
    with pytest.raises(errors.UnknownNameError, match="linear"):
        row_named("linea")


def test_what_is_taken() -> None:
    mxfp4, quark = numbers_named("mxfp4"), numbers_named("mxfp4,dialect=quark")
    stochastic = numbers_named("mxfp4,rounding=stochastic")
    assert takes("linear", "weight", mxfp4) is True and takes("linear", 0, None) is True
    assert takes("linear", OUT, mxfp4) is True and takes("linear", "weight", stochastic) is True
    assert takes("linear", "x", quark, dynamic=True) is True
    for refused, why in (
        (takes("fft", 0, None), "no fused operator"),
        (takes("linear", "z", mxfp4), "operands are x, weight, bias and out"),
        (takes("linear", 3, mxfp4), "no operand 3"),
        (takes("requantize", OUT, None), "quantized output only"),
        (takes("rms_norm", OUT, mxfp4), "floats only"),
        (takes("linear", "x", quark), "no codes"),
        (takes("linear", OUT, quark, dynamic=True), "no codes"),
        (takes("linear", "x", stochastic, dynamic=True), "seed"),
        (takes("linear", OUT, stochastic), "seed"),
    ):  # fmt: skip
        assert refused is not True and why in refused


def test_fields_say_all_numbers() -> None:
    """Whatever decides a value is read back as it was."""
    for i, numbers in enumerate(thinned(all_numbers())):
        if i % 3 or numbers.why_no_codes:
            continue
        layout = Layout(numbers, (4, 30), (1, 8))
        dynamic = fields_of(layout)
        assert numbers_of(dynamic, None, False) == numbers and tuple(dynamic.block or ()) == (1, 8)
        scale, zeros, t = ops.choose_params(torch.randn(4, 30), *place_of(layout))
        given = fields_of(layout, scale, zeros, t)
        found = numbers_of(given, str(scale.dtype), numbers.zero_point)
        assert without_rule(found) == without_rule(numbers)


def without_rule(numbers: Numbers) -> Any:
    """What a given scale was chosen by does not matter."""
    return {k: v for k, v in vars(numbers).items() if not k.startswith("_") and k in (
        "element", "scale", "tensor_scale", "zero_point", "quant_min", "quant_max", "rounding", "dialect"
    )}  # fmt: skip


def test_static_numbers_need_a_scale() -> None:
    static = Layout(numbers_named("int8,dynamic=false"), (4, 8), (0, 0))
    with pytest.raises(errors.ScaleError, match="static"):
        fields_of(static)


# -------------------------------------------------------------------------------- shapes of scales


def test_a_scale_of_one_element_has_any_rank() -> None:
    x, w = torch.randn(3, 40), torch.randn(8, 40)
    want = ops.dequantize(
        *ops.dynamic_quantize(w, "int8", [0, 0]), "int8", [8, 40], [0, 0], dtype=torch.float32
    )
    codes, scale, *_ = ops.dynamic_quantize(w, "int8", [0, 0])
    for shape in ((), (1,), (1, 1), (1, 1, 1)):
        weight = Quantized(codes, Fields(scale.reshape(shape), None, "int8"), want)
        operator, args, settings = call("linear", [as_is(x), weight, as_is(None)], {})
        assert equal(operator(*args, **settings), torch.nn.functional.linear(x, want))


def test_full_rank_and_compact() -> None:
    scale = torch.rand(8) + 0.5
    assert full_rank(scale, 4, 1).shape == (1, 8, 1, 1) and full_rank(scale, 2, -1).shape == (1, 8)
    assert full_rank(scale[0], 3, 0).shape == (1, 1, 1)
    assert full_rank(scale, 4, 1).data_ptr() == scale.data_ptr()
    channels, groups = layout_for("int8-channel", (8, 40, 3)), layout_for("int8-g16", (8, 40))
    assert equal(compact(full_rank(scale, 3, 0), channels), scale)
    assert compact(torch.ones(8, 3), groups).shape == (8, 3)
    assert compact(torch.ones(1, 1), layout_for("int8", (8, 40))).shape == ()
    with pytest.raises(errors.ScaleError, match="no compact form"):
        compact(torch.ones(2, 3), Layout(numbers_named("int8"), (8, 30), (4, 10)))
    with pytest.raises(errors.ShapeError, match=r"\(8, 3\)"):
        compact(torch.ones(3, 8), groups)
    with pytest.raises(errors.ShapeError, match="one dimension"):
        full_rank(torch.ones(2, 2), 2, 0)
    with pytest.raises(errors.ShapeError, match="axis"):
        full_rank(scale, 2, 2)


# ---------------------------------------------------------------------------------------- bad input


def linear(**changes: Any) -> Any:
    """blockscale.linear of a float x and a weight in mxfp4, with some arguments changed."""
    x, weight = torch.randn(3, 40), as_codes(torch.randn(8, 40), "mxfp4")
    operator, args, settings = call("linear", [as_is(x), weight, as_is(None)], {})
    names = [a.name for a in operator._schema.arguments]
    given = dict(zip(names, args, strict=False)) | settings | changes
    return operator(**given)


U8 = torch.uint8


@pytest.mark.parametrize(("changes", "kind", "message"), [
    ({"x": torch.zeros(3, 40, dtype=torch.int32)}, errors.DtypeError, "linear, operand x: .*float dtype"),
    ({"x": torch.zeros(3, 40, dtype=torch.float64)}, errors.DtypeError, "cast it first"),
    ({"compute": torch.bfloat16}, errors.DtypeError, "compute and float operands"),
    ({"bias": torch.zeros(8, dtype=torch.float16)}, errors.DtypeError, "operand bias.*cast it"),
    ({"weight_dtype": ""}, errors.ScaleError, "operand weight: .*element's name"),
    ({"weight_dtype": "mxfp4"}, errors.UnknownNameError, "dtype = 'mxfp4'"),
    ({"weight_dtype": "fp4_e2m1,axis=1"}, errors.UnknownNameError, "axis"),
    ({"weight_dtype": "mxint8"}, errors.DtypeError, "operand weight: codes"),
    ({"weight_dtype": "int8"}, errors.CombinationError, "int8"),
    ({"weight_scale": torch.ones(8, 2, dtype=torch.float64)}, errors.DtypeError, "E8M0"),
    ({"weight_scale": torch.ones(8, 3, dtype=U8), "weight_block": None}, errors.ScaleError, "give the block"),
    ({"weight_scale": torch.ones(2, 8, dtype=U8)}, errors.ScaleError, "scale shape"),
    ({"weight_scale": torch.ones(8, dtype=U8)}, errors.ScaleError, "full rank"),
    ({"weight_block": [32]}, errors.BlockError, "one entry a dimension"),
    ({"weight_last": 43}, errors.ShapeError, "last"),
    ({"weight_quant_min": -7}, errors.CombinationError, "quant_min"),
    ({"x_quant_max": 7}, errors.ScaleError, "float edge"),
    ({"x_dtype": "fp4_e2m1"}, errors.BlockError, "given where there is no scale"),
    ({"x_dtype": "fp4_e2m1", "x_block": [32]}, errors.BlockError, "one entry a dimension"),
    ({"x_dtype": "fp4_e2m1,rounding=stochastic", "x_block": [1, 32]}, errors.CombinationError, "seed"),
    ({"bias_dtype": "int8"}, errors.ScaleError, "no operand"),
    ({"out_dtype": "int8"}, errors.ScaleError, "output: .*linear.dynamic chooses one"),
    ({"out_quant_min": -3}, errors.ScaleError, "output"),
    ({"x": torch.zeros(3, 39)}, errors.ShapeError, "not taken by ATen"),
])  # fmt: skip
def test_bad_input(changes: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        linear(**changes)


def test_bad_output() -> None:
    x = as_is(torch.randn(3, 40))
    layout = layout_for("mxfp4", (3, 40))
    with pytest.raises(errors.ScaleError, match=r"requantize, output: .*a scale and a dtype"):
        operator, args, settings = call("requantize", [x], {})
        operator(*args, **settings)
    with pytest.raises(errors.ScaleError, match="rms_norm_quantize"):
        scale = ops.choose_params(x.given, *place_of(layout))[0]
        out = fields_of(layout, scale)
        operator, args, settings = call("rms_norm", [x, as_is(None)], {"normalized_shape": [40]}, out)
        operator(*args, **settings)
    with pytest.raises(errors.ScaleError, match="no scale"):
        args, settings = arguments_of(row_named("relu"), [x.given], [FLOAT])
        ops.relu.dynamic(*args, **settings)
    with pytest.raises(errors.ScaleError, match="zero_point"):
        zero = torch.zeros(1, 1, dtype=torch.int32)
        args, settings = arguments_of(
            row_named("relu"), [x.given], [FLOAT], Fields(None, zero, "uint8", block=[0, 0])
        )
        ops.relu.dynamic(*args, **settings)
    with pytest.raises(errors.UnknownNameError, match="weight_last"):
        operator, args, settings = call(
            "rms_norm", [x, as_is(None)], {"normalized_shape": [40], "form": "weight_lost", "eps": 0.1}
        )
        operator(*args, **settings)
    with pytest.raises(errors.ArgumentError, match="eps"):
        operator, args, settings = call(
            "rms_norm", [x, as_is(None)], {"normalized_shape": [40], "form": "weight_last"}
        )
        operator(*args, **settings)
    with pytest.raises(errors.ArgumentError, match="one for each of x, weight, bias"):
        arguments_of(row_named("linear"), [x.given], [FLOAT])


def test_nothing_is_written_and_nothing_returned_that_was_given() -> None:
    x, r, w = torch.randn(3, 40), torch.randn(3, 40), torch.randn(40)
    kept = [t.clone() for t in (x, r, w)]
    operands = [as_is(t) for t in (x, r, w)]
    out = fields_of(layout_for("mxfp4", (3, 40)))
    operator, args, settings = call("add_rms_norm_quantize", operands, {"normalized_shape": [40]}, out)
    results = operator(*args, **settings)
    assert all(map(equal, (x, r, w), kept))
    assert not {t.data_ptr() for t in results if t.numel()} & {t.data_ptr() for t in (x, r, w)}


def test_no_gradient() -> None:
    x = torch.randn(3, 40, requires_grad=True)
    operator, args, settings = call("relu", [as_is(x)], {})
    assert not operator(*args, **settings).requires_grad
