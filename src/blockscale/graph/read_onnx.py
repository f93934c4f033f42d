"""Arguments of ONNX operators → kind, operands and params, on stand-in sizes. The params are those of
read_aten, by the same names; opsets differ in whether they give arguments as attributes or as inputs, and
both are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blockscale.errors import BlockscaleError
from blockscale.graph.args import Args, Unreadable
from blockscale.graph.onnx_known import is_constant, known
from blockscale.graph.ops import KIND_OF_ONNX
from blockscale.graph.read_aten import power_of_two
from blockscale.graph.view import Value
from blockscale.numerics.moves import (
    Abs,
    Cat,
    Chain,
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
    Same,
    Slice,
    Split,
)

Params = dict[str, Any]
OPSET = "@opset"  # among the arguments: the version of the operators
_RUN_TIME = "its sizes are known only at run time"
_TO_THE_END = 2**31 - 1  # exporters write this or more for "to the end"


@dataclass(frozen=True)
class Found:
    kind: str
    operands: tuple[int | None, ...]
    params: Params


def read(op_type: str, a: Args) -> Found | None:
    """None where the operator is of no kind."""
    row = KIND_OF_ONNX.get(op_type)
    if row is None:
        return None
    names = row.onnx[op_type].split()
    if len(names) == 1 and isinstance(a.tensors.get(names[0]), list):
        operands = a.slot_list(names[0])
    else:
        operands = tuple(a.slot(name) for name in names)
    found = Found(row.kind, operands, {})
    reader = READ.get(op_type)
    if reader is not None:
        given = reader(a)
        found = given if isinstance(given, Found) else replace(found, params=given)
    if "move" in found.params:
        _check(found, a)
    return found


def _check(found: Found, a: Args) -> None:
    """That the move gives the shapes of the model: it may not where a size is known only at run time."""
    move: Move = found.params["move"]
    shapes = []
    for slot in found.operands[: None if isinstance(move, Cat) else 1]:
        value = None if slot is None else a.slots[slot]
        if value is None or value.meta is None:
            raise Unreadable("the shape of an operand is not known")
        shapes.append(a.alphabet.numbers(value.meta.shape))
    try:
        made = move.shapes(*shapes)
    except BlockscaleError as error:
        unknown = any(a.alphabet.involves_symbol(n) for i in range(len(a.outs)) for n in a.out_shape(i))
        raise Unreadable(_RUN_TIME if unknown else str(error)) from error
    if made != tuple(a.out_shape(i) for i in range(len(made))):
        raise Unreadable(_RUN_TIME)


# ------------------------------------------------------------------------------------------ arguments


def _array(a: Args, name: str) -> Any:
    """Of an input that is known now, or an attribute of older opsets; None where it is not given."""
    if a.value(name) is not None:
        array = known(a.value(name))
        if array is None:
            raise Unreadable(f"{name} is no constant")
        return array
    given = a.get(name)
    return None if given is None else np.asarray(given)


def _ints(a: Args, name: str) -> tuple[int, ...] | None:
    array = _array(a, name)
    return None if array is None else tuple(int(n) for n in array.reshape(-1))


def _needed(a: Args, name: str) -> tuple[int, ...]:
    found = _ints(a, name)
    if found is None:
        raise Unreadable(f"{name} is not given")
    return found


def _number(a: Args, name: str) -> float | None:
    array = _array(a, name)
    return None if array is None or array.size != 1 else float(array.reshape(-1)[0])


def _single(value: Value | None) -> float | None:
    """The one number of a constant."""
    if value is None or value.meta is None or set(value.meta.shape) - {1}:
        return None
    array = known(value)
    return None if array is None else float(array.reshape(-1)[0])


# ------------------------------------------------------------------------------------------ moves


def _reshape(a: Args) -> Params:
    return {"move": Reshape(a.out_shape())}


def _permute(a: Args) -> Params:
    rank = len(a.shape("data"))
    return {"move": Permute(tuple(a.get("perm") or reversed(range(rank))))}


def _expand(a: Args) -> Params:
    return {"move": Expand(a.out_shape())}


def _slice(a: Args) -> Params:
    shape = a.shape("data")
    starts, ends = _needed(a, "starts"), _needed(a, "ends")
    axes = _ints(a, "axes") or tuple(range(len(starts)))
    steps = _ints(a, "steps") or (1,) * len(starts)
    moves: list[Move] = []
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        n = shape[axis]
        if step == -1 and end < -n and (start == -1 or start >= n - 1):
            moves.append(Flip((axis % len(shape),)))
        elif step < 1:
            raise Unreadable(f"it goes backwards from {start} to {end}")
        elif (start, step) != (0, 1) or end < _TO_THE_END:
            moves.append(Slice(axis % len(shape), start, None if end >= _TO_THE_END else end, step))
    return {"move": _chain(moves)}


def _chain(moves: list[Move]) -> Move:
    if len(moves) == 1:
        return moves[0]
    if moves and all(isinstance(move, Flip) for move in moves):
        return Flip(tuple(axis for move in moves if isinstance(move, Flip) for axis in move.axes))
    return Chain(tuple(moves)) if moves else Same()


def _split(a: Args) -> Params:
    axis = a.int("axis", 0)
    return {"move": Split(axis, tuple(a.out_shape(i)[axis] for i in range(len(a.outs))))}


def _cat(a: Args) -> Params:
    return {"move": Cat(a.int("axis"))}


def _gather(a: Args) -> Found | Params:
    """A table looked up at run time is an embedding; known places are a move."""
    places = known(a.value("indices"))
    shape, axis = a.shape("data"), a.int("axis", 0)
    if places is None:
        if len(shape) == 2 and axis == 0 and is_constant(a.value("data")):
            return Found("embedding", (a.slot("data"), a.slot("indices")), {})
        raise Unreadable("indices is no constant")
    flat = tuple(int(i) for i in places.reshape(-1))
    if places.ndim == 1:
        return {"move": Gather(axis, flat)}
    taken: Move = Gather(axis, flat)
    if len(flat) == 1:
        taken = Slice(axis, flat[0], flat[0] + 1 or None)
    return {"move": Chain((taken, Reshape(a.out_shape())))}


def _repeat(a: Args) -> Params:
    return {"move": Repeat(_needed(a, "repeats"))}


def _pad(a: Args) -> Params:
    mode = a.get("mode", "constant")
    if mode != "constant":
        raise Unreadable(f"its mode is {mode}")
    value = a.get("value", 0.0) if a.value("constant_value") is None else _number(a, "constant_value")
    if value != 0:
        raise Unreadable("it pads with something other than 0")
    pads, rank = _needed(a, "pads"), len(a.shape("data"))
    axes = _ints(a, "axes") or tuple(range(rank))
    if any(p < 0 for p in pads):
        raise Unreadable("it crops")
    widths = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        widths[axis] = (pads[i], pads[i + len(axes)])
    return {"move": Pad(tuple(widths))}


def _dropout(a: Args) -> Params:
    if a.value("training_mode") is not None and _number(a, "training_mode") != 0:
        raise Unreadable("it drops at random")
    if len(a.outs) > 1:
        raise Unreadable("it gives its mask")
    return {"move": Same()}


def _whole(move: Move) -> Callable[[Args], Params]:
    return lambda a: {"move": move}


def _cast(a: Args) -> Params:
    dtype = a.out().dtype
    return {"move": Same()} if dtype == a.meta("input").dtype else {"dtype": dtype}


# ------------------------------------------------------------------------------------------ arithmetic


def _mul(a: Args) -> Found:
    """The tensor first, the one number second; a factor that is a power of two is a move."""
    names = ("A", "B")
    if _single(a.value("B")) is None and _single(a.value("A")) is not None:
        names = ("B", "A")
    return Found("mul", (a.slot(names[0]), a.slot(names[1])), _scaled(a, *names, "factor", 1))


def _div(a: Args) -> Params:
    return _scaled(a, "A", "B", "divisor", -1)


def _scaled(a: Args, tensor: str, number: str, name: str, sign: int) -> Params:
    factor = _single(a.value(number))
    if factor is None:
        return {}
    params: Params = {name: factor}
    power = power_of_two(factor)
    given = a.value(tensor)
    same = given is not None and given.meta == a.out()
    if power is not None and same and a.out().dtype in ("float32", "float16", "bfloat16", "float64"):
        params["move"] = MulPow2(sign * power)
    return params


def _pow(a: Args) -> Params:
    exponent = _single(a.value("Y"))
    return {} if exponent is None else {"exponent": exponent}


def _clip(a: Args) -> Params:
    params = {}
    for name in ("min", "max"):
        if name in a:
            params[f"{name}_val"] = _number(a, name)
    return params


# ------------------------------------------------------------------------------------------ products


def _gemm(a: Args) -> Params:
    return {
        "trans_a": bool(a.int("transA", 0)),
        "trans_b": bool(a.int("transB", 0)),
        "alpha": float(a.get("alpha", 1.0)),
        "beta": float(a.get("beta", 1.0)),
    }


def _conv(a: Args) -> Params:
    """padding is a number a dimension where both ends have it; else `pads` and `auto_pad` are ONNX's."""
    dims = len(a.shape("X")) - 2
    params: Params = {
        "stride": tuple(a.get("strides") or (1,) * dims),
        "dilation": tuple(a.get("dilations") or (1,) * dims),
        "groups": a.int("group", 1),
    }
    auto, pads = a.get("auto_pad", "NOTSET"), tuple(a.get("pads") or (0,) * 2 * dims)
    if auto == "NOTSET" and pads[:dims] == pads[dims:]:
        params["padding"] = pads[:dims]
    elif auto == "VALID":
        params["padding"] = (0,) * dims
    else:
        params |= {"pads": pads, "auto_pad": auto}
    return params


def _conv_transpose(a: Args) -> Params:
    params = _conv(a)
    params["output_padding"] = tuple(a.get("output_padding") or (0,) * len(params["stride"]))
    if a.get("output_shape") is not None:
        params["output_shape"] = tuple(a.get("output_shape"))
    return params


def _attention(a: Args) -> Params:
    for name in ("past_key", "past_value", "nonpad_kv_seqlen"):
        if name in a:
            raise Unreadable(f"it has {name}")
    if a.get("softcap", 0.0) or a.get("qk_matmul_output_mode", 0) or len(a.outs) > 1:
        raise Unreadable("it caps, or gives, its scores")
    if a.get("left_window_size", -1) != -1 or a.get("right_window_size", -1) != -1:
        raise Unreadable("it looks through a window")
    heads = {name: a.int(name) for name in ("q_num_heads", "kv_num_heads") if name in a}
    scale = a.get("scale")
    return {
        "is_causal": bool(a.int("is_causal", 0)),
        "scale": None if scale is None else float(scale),
    } | heads


# ------------------------------------------------------------------------------------------ norms, the rest


def _normalized(a: Args) -> Params:
    shape, axis = a.shape("X"), a.int("axis", -1)
    return {"normalized_shape": tuple(shape[axis % len(shape) :]), "eps": float(a.get("epsilon", 1e-5))}


def _batch_norm(a: Args) -> Params:
    if a.int("training_mode", 0):
        raise Unreadable("it is in training mode")
    return {"eps": float(a.get("epsilon", 1e-5)), "training": False}


def _group_norm(a: Args) -> Params:
    groups = a.int("num_groups")
    if a.shape("scale")[0] != a.shape("X")[1]:
        raise Unreadable("it has a scale for each group, as of opset 18")
    return {"num_groups": groups, "eps": float(a.get("epsilon", 1e-5))}


def _mean(a: Args) -> Params:
    axes = _ints(a, "axes")
    if not axes:
        rank = len(a.shape("data"))
        axes = () if a.get("noop_with_empty_axes", 0) else tuple(range(rank))
    return {"dim": axes, "keepdim": bool(a.int("keepdims", 1))}


def _softmax(a: Args) -> Params:
    axis, rank = a.int("axis", -1), len(a.shape("input"))
    if a.int(OPSET) < 13 and axis % rank != rank - 1:
        raise Unreadable("before opset 13 it runs over several dimensions")
    return {"dim": axis % rank if rank else 0}


def _equals(wanted: dict[str, float], params: Params) -> Callable[[Args], Params]:
    """Of an operator that ATen has with these arguments only."""

    def read(a: Args) -> Params:
        for name, value in wanted.items():
            if not math.isclose(float(a.get(name, value)), value, rel_tol=1e-6):
                raise Unreadable(f"{name} is {a.get(name)}")
        return params

    return read


READ: dict[str, Callable[[Args], Params | Found]] = {
    "Identity": _whole(Same()), "Dropout": _dropout, "Reshape": _reshape, "Flatten": _reshape,
    "Squeeze": _reshape, "Unsqueeze": _reshape, "Transpose": _permute, "Expand": _expand, "Slice": _slice,
    "Split": _split, "Concat": _cat, "Gather": _gather, "Tile": _repeat, "Pad": _pad, "Neg": _whole(Neg()),
    "Abs": _whole(Abs()), "Relu": _whole(Relu()), "Cast": _cast, "Mul": _mul, "Div": _div, "Pow": _pow,
    "Clip": _clip, "Gemm": _gemm, "Conv": _conv, "ConvTranspose": _conv_transpose, "Attention": _attention,
    "RMSNormalization": _normalized, "LayerNormalization": _normalized, "BatchNormalization": _batch_norm,
    "GroupNormalization": _group_norm, "ReduceMean": _mean, "Softmax": _softmax,
    "Gelu": lambda a: {"approximate": a.get("approximate", "none")},
    "Swish": _equals({"alpha": 1.0}, {}), "HardSigmoid": _equals({"alpha": 1 / 6, "beta": 0.5}, {}),
}  # fmt: skip
