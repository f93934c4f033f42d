"""Calibration of torch models against values caught by hooks of the eager module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import fx, nn

import blockscale as bs
from blockscale.errors import CalibrationError, DtypeError
from blockscale.numerics import native
from blockscale.numerics.layout import bind
from blockscale.numerics.observers import METHODS, observer
from blockscale.numerics.scheme import Scheme, scheme_named
from blockscale.runtime.calibration_data import random
from blockscale.runtime.torch_calibrate import calibrate
from conformance.data import assert_same

UINT8, INT8 = scheme_named("uint8"), scheme_named("int8")
CHANNELS = Scheme(element="int8", scale="f32", axis=1, block=1, others=0)
DYNAMIC = torch.export.Dim.DYNAMIC


class Block(nn.Module):
    """A residual block with batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.relu(self.norm(self.first(x))))


@pytest.fixture
def block() -> Block:
    torch.manual_seed(0)
    model = Block()
    model(torch.randn(16, 3, 8, 8))  # running statistics
    return model.eval()


def pictures(count: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2 + i, 3, 8, 8, generator=generator) * (1 + i) for i in range(count)]


def exported(model: nn.Module, x: torch.Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(model, (x,), dynamic_shapes=({0: DYNAMIC},))


def node_of(module: fx.GraphModule, operator: str) -> str:
    return next(n.name for n in module.graph.nodes if operator in str(n.target))


def caught(model: Block, xs: list[torch.Tensor]) -> dict[str, list[np.ndarray[Any, Any]]]:
    """Outputs of `first` and inputs of `second`, as the eager model computes them."""
    seen: dict[str, list[np.ndarray[Any, Any]]] = {"first": [], "second": []}
    hooks = [
        model.first.register_forward_hook(lambda m, i, o: seen["first"].append(o.numpy())),
        model.second.register_forward_hook(lambda m, i, o: seen["second"].append(i[0].numpy())),
    ]
    with torch.no_grad():
        for x in xs:
            model(x)
    for hook in hooks:
        hook.remove()
    return seen


FORMS: dict[str, Callable[[Block], Any]] = {
    "exported program": lambda model: exported(model, pictures()[0]),
    "module of it": lambda model: exported(model, pictures()[0]).module(),
    "symbolic trace": fx.symbolic_trace,
}


@pytest.mark.parametrize("form", FORMS)
def test_parameters_are_those_of_the_eager_values(block: Block, form: str) -> None:
    model, xs = FORMS[form](block), pictures()
    graph = model.module() if form == "exported program" else model
    conv, relu = node_of(graph, "conv" if form != "symbolic trace" else "first"), node_of(graph, "relu")
    observers = {
        conv: observer("minmax", CHANNELS, name=conv),
        relu: observer("minmax", UINT8, name=relu),
        (relu, "again"): observer("minmax", INT8, name=relu),
        "x": observer("minmax", INT8, name="x"),
    }
    found = calibrate(model, iter(xs), observers)
    assert list(found) == list(observers)
    values = {name: np.concatenate(arrays) for name, arrays in caught(block, xs).items()}
    values["x"] = torch.cat(xs).numpy()
    for key, scheme, name in (
        (conv, CHANNELS, "first"),
        (relu, UINT8, "second"),
        ((relu, "again"), INT8, "second"),
        ("x", INT8, "x"),
    ):
        chosen = native.choose_params(values[name], bind(scheme, values[name].shape))
        assert_same(found[key].scales, chosen.scales)
        assert (found[key].zero_points is None) == (chosen.zero_points is None)
        if chosen.zero_points is not None:
            assert_same(found[key].zero_points, chosen.zero_points)
    again = calibrate(model, xs, {relu: observer("minmax", UINT8, name=relu)})
    assert_same(again[relu].scales, found[relu].scales)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_shown_every_batch(block: Block, method: str) -> None:
    xs = pictures()
    by_hand = observer(method, UINT8, name="relu")
    for values in caught(block, xs)["second"]:
        by_hand.update(values)
    found = calibrate(exported(block, xs[0]), xs, {"relu": observer(method, UINT8, name="relu")})["relu"]
    assert_same(found.scales, by_hand.finish().scales)
    assert_same(found.zero_points, by_hand.finish().zero_points)


def test_the_model_stays_as_it_was(block: Block) -> None:
    model = fx.symbolic_trace(block.train())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    code, modules = model.code, [name for name, _ in model.named_modules()]
    found = calibrate(model, pictures(), {"relu": observer("minmax", UINT8, name="relu")})
    assert model.code == code
    assert [name for name, _ in model.named_modules()] == modules
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    expected = np.concatenate(caught(block.eval(), pictures())["second"])
    assert found["relu"].high == expected.max()  # by the running statistics, as the model will run


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3, dtype=torch.bfloat16)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor, *, options: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        with torch.no_grad():
            y = torch.nn.functional.gelu(self.linear(x))
        return torch.cond(mask.sum() > 0, torch.sin, torch.cos, (y * options["gain"],))


def named_program() -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    x, mask, gain = torch.ones(2, 4, dtype=torch.bfloat16), torch.ones(3), torch.ones(1, dtype=torch.bfloat16)
    return torch.export.export(Named(), (x, mask), {"options": {"gain": gain}})


def test_arguments_by_name_and_bodies_of_control_flow() -> None:
    program = named_program()
    bodies = {
        name: node_of(body, operator)
        for name, body in program.module().named_modules()
        for operator in ("gelu", "sin", "cos")
        if isinstance(body, fx.GraphModule)
        and name
        and any(operator in str(n.target) for n in body.graph.nodes)
    }
    assert len(bodies) == 3
    gelu, sin, cos = (
        next(f"{path}.{node}" for path, node in bodies.items() if operator in node)
        for operator in ("gelu", "sin", "cos")
    )
    r = torch.Generator().manual_seed(3)
    xs = [torch.randn(2, 4, generator=r).bfloat16() for _ in range(4)]
    gain = torch.full((1,), 2.0, dtype=torch.bfloat16)
    calls = [{"x": x, "mask": torch.ones(3), "options": {"gain": gain}} for x in xs]
    looked = {name: observer("minmax", INT8, name=name) for name in (gelu, sin)}
    found = calibrate(program, calls, looked)
    linear = nn.Linear(4, 3, dtype=torch.bfloat16)
    linear.load_state_dict({n.removeprefix("linear."): p for n, p in program.state_dict.items()})
    with torch.no_grad():
        values = torch.cat([torch.nn.functional.gelu(linear(x)) for x in xs])
    as_numpy = values.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    assert_same(found[gelu].scales, native.choose_params(as_numpy, bind(INT8, as_numpy.shape)).scales)
    assert found[sin].high == float((values * gain).sin().max().clamp(min=0))
    with pytest.raises(CalibrationError, match="has seen no batch"):  # a branch that was never taken
        calibrate(program, calls, {cos: observer("minmax", INT8, name=cos)})
    calibrate(program, [(xs[0], torch.ones(3), {"gain": gain})], {gelu: observer("minmax", INT8, name=gelu)})


def test_readers_and_random_data(block: Block) -> None:
    program, xs = exported(block, pictures()[0]), pictures()

    class Reader:
        def __init__(self) -> None:
            self.left = list(xs)

        def get_next(self) -> torch.Tensor | None:
            return self.left.pop(0) if self.left else None

    def scale_from(source: Any) -> Any:
        return calibrate(program, source, {"relu": observer("minmax", UINT8, name="relu")})["relu"].scales

    assert_same(scale_from(Reader()), scale_from(xs))
    assert_same(scale_from([(x,) for x in xs]), scale_from([{"x": x} for x in xs]))
    assert_same(scale_from(random(2, seed=5)), scale_from(random(2, seed=5)))
    assert scale_from(random(2, seed=5)) != scale_from(random(2, seed=6))
    narrow = random(4, ranges={"x": (2, 3)}, shapes={"x": (5, 3, 8, 8)})
    assert 2.9 < calibrate(program, narrow, {"x": observer("minmax", UINT8, name="x")})["x"].high < 3
    scale_of_names = calibrate(named_program(), random(1), {"x": observer("minmax", INT8, name="x")})
    assert scale_of_names["x"].scales > 0
    with pytest.raises(CalibrationError, match=r"'x': its shape is not known.*torch\.export"):
        calibrate(fx.symbolic_trace(block), random(1), {"relu": observer("minmax", UINT8, name="relu")})


def test_no_observers_need_no_data(block: Block) -> None:
    def untouched() -> Iterator[torch.Tensor]:
        raise AssertionError("MX asks for no data")
        yield

    assert calibrate(fx.symbolic_trace(block), untouched(), {}) == {}
    assert calibrate(fx.symbolic_trace(block), None, {}) == {}


X = torch.ones(2, 3, 8, 8)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, r"'relu' takes static scales, which come from data: give .* calibration=.*MX"),
        ([], r"'relu' takes static scales, and the calibration data holds no batch"),
        (
            [X, X[:, :2]],
            r"batch 2, input 'x' has shape \[2, 2, 8, 8\]: .* takes float32 \[any, 3, 8, 8\]",
        ),
        ([X.double()], r"batch 1, input 'x' is float64: the model takes float32 \[any, 3, 8, 8\]"),
        ([3], r"batch 1, input 'x' is a int: the model takes float32"),
        ([(X, 3)], r"batch 1: too many positional arguments; the model takes \(x\)"),
        ([{"y": X}], r"batch 1: missing a required argument: 'x'; the model takes \(x\)"),
        (X, r"a single Tensor: put it in a list"),
        ({"x": X}, r"a single dict: put it in a list"),
        ("data", r"calibration folder 'data': there is no such folder"),
        (3, r"calibration is a int: give an iterable"),
    ],
)
def test_wrong_data(block: Block, source: Any, message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        calibrate(exported(block, pictures()[0]), source, {"relu": observer("minmax", UINT8, name="relu")})


def test_wrong_observers(block: Block) -> None:
    program = exported(block, pictures()[0])
    for name, message in (
        ("rela", r"'rela': the graph that runs has no such node; did you mean 'relu'\?"),
        ("output", "no such node"),
        ("nowhere.relu", "no such node"),
        ("p_first_weight", "parameters are not calibrated: blockscale.choose_params"),
    ):
        with pytest.raises(CalibrationError, match=message):
            calibrate(program, pictures(), {name: observer("minmax", UINT8, name=name)})
    with pytest.raises(DtypeError, match="GraphModule or"):
        calibrate(block, pictures(), {"relu": observer("minmax", UINT8, name="relu")})  # type: ignore[arg-type]

    class Split(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.split(1, 1)[0].argmax(-1)

    several = torch.export.export(Split(), (X,)).module()
    split, argmax = node_of(several, "split"), node_of(several, "argmax")
    with pytest.raises(CalibrationError, match=f"{split!r}: it is a .*observe the getitem nodes"):
        calibrate(several, [X], {split: observer("minmax", UINT8, name=split)})
    with pytest.raises(DtypeError, match=r"int64.*cast it first"):
        calibrate(several, [X], {argmax: observer("minmax", UINT8, name=argmax)})


@pytest.mark.parametrize("method", METHODS)
def test_not_finite_names_the_tensor_and_the_sample(block: Block, method: str) -> None:
    bad = pictures()
    bad[1][2, 1, 3, 3] = float("nan")
    with pytest.raises(
        CalibrationError, match=r"'conv2d', batch 2: .* first at \(2, 0, 2, 2\).*leave the batch"
    ):
        calibrate(exported(block, bad[0]), bad, {"conv2d": observer(method, UINT8, name="conv2d")})


def test_a_model_that_fails_on_a_batch() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(-1, 7).relu()

    model = fx.symbolic_trace(Fails())
    with pytest.raises(CalibrationError, match=r"batch 2: the model does not run on it: RuntimeError"):
        calibrate(model, [torch.ones(7), torch.ones(8)], {"relu": observer("minmax", INT8, name="relu")})


class Cache(nn.Module):
    """It writes to a buffer, and to a tensor between its readers through a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 8))
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.cache.add_(x)
        y = torch.zeros(4, 8)
        a = self.first(y)
        y[:2] = x[:2] * 100
        return a + self.second(y), self.first(self.cache)


@pytest.mark.filterwarnings("ignore:.*LeafSpec")  # run_decompositions copies its own deprecated class
@pytest.mark.parametrize("form", ["program", "decomposed", "module"])
def test_what_is_written_to_is_seen_as_it_is_read(form: str) -> None:
    torch.manual_seed(0)
    x, model = torch.randn(4, 8), Cache()
    expected = copy.deepcopy(model)(x)
    given: Any = model
    if form != "module":
        given = torch.export.export(model, (x,))
        given = given.run_decompositions() if form == "decomposed" else given
    quantized = bs.quantize_model(
        given, "int8", calibration=[x], example_inputs=(x,) if form == "module" else None
    )
    assert not model.cache.any()
    for got, float_ in zip(quantized(x), expected, strict=True):
        assert (got - float_).abs().max() < 0.03 * float_.abs().max()
    assert torch.equal(quantized.state_dict()["model.cache"], x)
    assert not model.cache.any()


def test_buffers_are_there_for_the_next_batch_and_for_nobody_else() -> None:
    model, batches = Cache(), [torch.full((4, 8), float(i)) for i in (1, 2)]
    module = torch.export.export(model, (batches[0],)).module()
    add = node_of(module, "add_.Tensor")
    found = calibrate(module, batches, {add: observer("minmax", UINT8, name=add)})[add]
    assert found.high == 3
    assert not model.cache.any()
    assert bs.compare(module, module, batches).equal


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.mul_(0.5))


def test_what_is_given_stays_as_it_is() -> None:
    x = torch.randn(4, 8)
    kept, model = x.clone(), Scaled()
    quantized = bs.quantize_model(model, "int8", example_inputs=x.clone(), calibration=[x])
    assert torch.equal(x, kept)
    assert bs.compare(model, model, [x]).equal
    assert bs.compare(model, quantized, [x]).outputs[0].sqnr > 25
    assert torch.equal(x, kept)
