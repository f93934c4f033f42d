"""The tensors of a small language model, written down as a recipe sees them."""

from __future__ import annotations

from blockscale.recipe import Operand


def tensor(
    node: str, kind: str, role: str, use: str, shape: tuple[int | None, ...], **more: object
) -> Operand:
    """A name and an index are made up where none is given."""
    index = {"input": 0, "weight": 1, "bias": 2, "output": 0}[role]
    name = f"{node}.{role}" if role in ("weight", "bias") else f"{node}_{role}"
    given: dict[str, object] = {"index": index, "tensor": name, "dtype": "f32"}
    return Operand(node, kind, role, shape=shape, use=use, **(given | more))  # type: ignore[arg-type]


def linear(node: str, rows: int, columns: int, **more: object) -> list[Operand]:
    common: dict[str, object] = {"axis": -1, **more}
    return [
        tensor(node, "linear", "input", "linear", (None, 16, columns), **common),
        tensor(node, "linear", "weight", "linear", (rows, columns), channel=0, **common),
        tensor(node, "linear", "bias", "linear", (rows,), **more),
        tensor(node, "linear", "output", "linear", (None, 16, rows), **common),
    ]


def model() -> list[Operand]:
    return [
        tensor("embed", "embedding", "weight", "embedding", (1000, 64), axis=-1, channel=0, index=0),
        tensor("embed", "embedding", "output", "embedding", (None, 16, 64)),
        tensor("layers.0.norm", "rms_norm", "input", "norm", (None, 16, 64)),
        tensor("layers.0.norm", "rms_norm", "output", "norm", (None, 16, 64)),
        *linear("layers.0.q_proj", 64, 64),
        tensor("layers.0.sdpa", "sdpa", "input", "attention", (None, 4, 16, 16), axis=-1),
        tensor("layers.0.sdpa", "sdpa", "input", "attention", (None, 4, 16, 16), axis=-2, index=2),
        tensor("layers.0.sdpa", "sdpa", "output", "attention", (None, 4, 16, 16)),
        tensor("layers.0.add", "add", "input", "residual", (None, 16, 64)),
        tensor("layers.0.add", "add", "output", "residual", (None, 16, 64)),
        *linear("layers.0.mlp.up", 256, 64),
        tensor("layers.0.mlp.gelu", "gelu", "input", "other", (None, 16, 256)),
        tensor("layers.0.mlp.gelu", "gelu", "output", "other", (None, 16, 256)),
        *linear("layers.0.mlp.down", 64, 256),
        *linear("lm_head", 1000, 64, head=True),
    ]


def one(role: str, **more: object) -> Operand:
    """Of a linear of 64 × 96."""
    (found,) = [operand for operand in linear("block.fc", 64, 96, **more) if operand.role == role]
    return found
