"""Arguments of ATen operators → params of their kind, on stand-in sizes. One function a kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from blockscale.graph.args import Args, Unreadable
from blockscale.numerics.moves import (
    Abs,
    Cat,
    Expand,
    Flip,
    Gather,
    Move,
    MulPow2,
    Neg,
    Pad,
    Permute,
    Relu,
    Repeat,
    Reshape,
    Roll,
    Same,
    Slice,
    Split,
)

Params = dict[str, Any]


def _reshape(name: str, a: Args) -> Params:
    a.shape("self")
    return {"move": Reshape(a.out_shape())}


def _permute(name: str, a: Args) -> Params:
    rank = len(a.shape("self"))
    if name == "aten.permute.default":
        return {"move": Permute(a.ints("dims"))}
    order = list(range(rank))
    if name.startswith("aten.movedim"):
        return {"move": Permute(_moved(order, a.ints("source"), a.ints("destination")))}
    if name in ("aten.t.default", "aten.numpy_T.default"):
        return {"move": Permute(tuple(reversed(order)))}
    names = ("axis0", "axis1") if "swapaxes" in name else ("dim0", "dim1")
    i, j = (a.int(n) % max(rank, 1) for n in names)
    if rank:
        order[i], order[j] = order[j], order[i]
    return {"move": Permute(tuple(order))}


def _moved(order: list[int], source: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...]:
    rank = len(order)
    placed = {t % rank: s % rank for s, t in zip(source, target, strict=True)}
    rest = iter([i for i in order if i not in placed.values()])
    return tuple(placed[i] if i in placed else next(rest) for i in order)


def _expand(name: str, a: Args) -> Params:
    a.shape("self")
    return {"move": Expand(a.out_shape())}


def _slice(name: str, a: Args) -> Params:
    shape, axis = a.shape("self"), a.int("dim", 0)
    if name == "aten.narrow.default":
        start = a.int("start")
        return {"move": Slice(axis, start, start + a.int("length"))}
    stop = a.get("end")
    move = Slice(
        axis, a.int("start", 0), None if stop is None or stop >= 2**62 else int(stop), a.int("step", 1)
    )
    if move.shape(shape) != a.out_shape():  # a bound that only a run tells
        raise Unreadable("its bounds are known only at run time")
    return {"move": move}


def _split(name: str, a: Args) -> Params:
    axis = a.int("dim", 0)
    sizes = tuple(a.out_shape(i)[axis] for i in range(len(a.outs)))
    if sum(sizes) != a.shape("self")[axis]:
        raise Unreadable("its parts are known only at run time")
    return {"move": Split(axis, sizes)}


def _cat(name: str, a: Args) -> Params:
    slots = a.slot_list("tensors")
    values = [a.slots[slot] for slot in slots if slot is not None]
    if any(v is None or v.meta is None for v in values):
        raise Unreadable("the shape of a part is not known")
    ranks = {len(v.meta.shape) for v in values if v is not None and v.meta is not None}
    if len(ranks) != 1:  # torch lets empty tensors of one dimension pass
        raise Unreadable("its parts differ in rank")
    return {"move": Cat(a.int("dim", 0))}


def _gather(name: str, a: Args) -> Params:
    indices = np.asarray(a.array("index")).reshape(-1)
    a.shape("self")
    return {"move": Gather(a.int("dim"), tuple(int(i) for i in indices))}


def _repeat(name: str, a: Args) -> Params:
    times = a.ints("repeats" if "repeat" in name else "dims")
    rank = len(a.shape("self"))
    if len(times) > rank:
        raise Unreadable("it adds dimensions")
    return {"move": Repeat((1,) * (rank - len(times)) + times)}


def _flip(name: str, a: Args) -> Params:
    a.shape("self")
    return {"move": Flip(a.ints("dims"))}


def _roll(name: str, a: Args) -> Params:
    dims = a.get("dims")
    if not dims:
        raise Unreadable("it rolls the flattened tensor")
    a.shape("self")
    return {"move": Roll(a.ints("shifts"), tuple(dims))}


def _pad(name: str, a: Args) -> Params:
    if name == "aten.pad.default" and a.get("mode", "constant") != "constant":
        raise Unreadable(f"its mode is {a.get('mode')}")
    if (a.get("value") or 0) != 0:
        raise Unreadable("it pads with something other than 0")
    pad, rank = a.ints("pad"), len(a.shape("self"))
    if any(p < 0 for p in pad):
        raise Unreadable("it crops")
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    return {"move": Pad(tuple([(0, 0)] * (rank - len(pairs)) + pairs[::-1]))}


def _whole(move: Move) -> Callable[[str, Args], Params]:
    def read(name: str, a: Args) -> Params:
        a.shape("self")
        if a.meta("self").dtype.startswith("complex"):
            raise Unreadable("of complex numbers it is no move")
        return {"move": move}

    return read


def _identity(name: str, a: Args) -> Params:
    if name == "aten.dropout.default" and a.get("train", True):
        raise Unreadable("it drops at random")
    return {"move": Same()}


def _cast(name: str, a: Args) -> Params:
    dtype = a.out().dtype
    if dtype == a.meta("self").dtype:
        return {"move": Same()}
    return {"dtype": dtype}


def _mul(name: str, a: Args) -> Params:
    """A factor that is a power of two is a move."""
    factor = a.get("other") if "other" in a.others else None
    value = a.value("other") if factor is None else None
    if (
        factor is None
        and value is not None
        and value.const is not None
        and value.meta is not None
        and not value.meta.shape
    ):
        factor = float(value.const.fetch())
    if isinstance(factor, bool) or not isinstance(factor, int | float):
        return {}
    params: Params = {"factor": float(factor)}
    power = power_of_two(float(factor))
    if power is not None and a.out().dtype == a.meta("self").dtype and a.out().shape == a.meta("self").shape:
        params["move"] = MulPow2(power)
    return params


def _div(name: str, a: Args) -> Params:
    if a.get("rounding_mode") is not None:
        raise Unreadable("it rounds")
    params = _mul(name, a)
    if "move" in params:
        params["move"] = MulPow2(-params["move"].k)
    return {"divisor" if key == "factor" else key: value for key, value in params.items()}


def power_of_two(factor: float) -> int | None:
    if factor <= 0 or not math.isfinite(factor):
        return None
    mantissa, exponent = math.frexp(factor)
    return exponent - 1 if mantissa == 0.5 else None


def _scalar(*names: str) -> Callable[[str, Args], Params]:
    """Python values among the arguments, by name."""

    def read(name: str, a: Args) -> Params:
        return {n: _frozen(a.get(n)) for n in names if n in a.others}

    return read


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, list | tuple) else value


def _conv(name: str, a: Args) -> Params:
    if name == "aten.convolution.default" and a.get("transposed"):
        raise Unreadable("a transposed convolution in its general form")
    params = {n: _frozen(a.get(n)) for n in ("stride", "padding", "dilation", "groups")}
    return params


def _matmul(name: str, a: Args) -> Params:
    if name in ("aten.addmm.default", "aten.baddbmm.default") and (a.get("beta", 1), a.get("alpha", 1)) != (
        1,
        1,
    ):
        raise Unreadable("alpha or beta is not 1")
    return {}


def _add(name: str, a: Args) -> Params:
    if a.get("alpha", 1) != 1:
        raise Unreadable("alpha is not 1")
    return {"factor": float(a.get("other"))} if isinstance(a.others.get("other"), int | float) else {}


READ: dict[str, Callable[[str, Args], Params]] = {
    "identity": _identity, "reshape": _reshape, "permute": _permute, "expand": _expand, "slice": _slice,
    "split": _split, "cat": _cat, "gather": _gather, "repeat": _repeat, "flip": _flip, "roll": _roll,
    "pad": _pad, "neg": _whole(Neg()), "abs": _whole(Abs()), "relu": _whole(Relu()), "cast": _cast,
    "mul": _mul, "div": _div, "add": _add, "sub": _add,
    "conv": _conv, "conv_transpose": _conv, "matmul": _matmul,
    "pow": _scalar("exponent"), "rms_norm": _scalar("normalized_shape", "eps"),
    "layer_norm": _scalar("normalized_shape", "eps"), "gelu": _scalar("approximate"),
    "mean": _scalar("dim", "keepdim"), "softmax": _scalar("dim"), "group_norm": _scalar("num_groups", "eps"),
    "batch_norm": _scalar("eps", "training"),
    "sdpa": _scalar("dropout_p", "is_causal", "scale", "enable_gqa"),
}  # fmt: skip
