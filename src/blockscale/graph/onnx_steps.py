"""What a step of preparation says of a node of the model, or of the whole of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Told:
    """`did`, or why it was `left`; `node` is empty where the model is meant."""

    step: str
    node: str
    did: str = ""
    left: str = ""
