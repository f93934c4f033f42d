"""The arguments of one operator by the names that it gives them, whatever the framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockscale.graph.dims import Alphabet
from blockscale.graph.view import Meta, Value

_Int = int  # a method below has its name


class Unreadable(Exception):
    """The arguments say something that the kind has no words for; the argument is the reason."""


class Args:
    """slots    every operand of the node, in its own order
    tensors  argument name → slot, a list of slots, or None where it is absent
    others   argument name → a Python value; where a size is computed in the graph, its Value
    outs     what is known of the outputs
    """

    __slots__ = ("alphabet", "others", "outs", "slots", "tensors")

    def __init__(
        self, slots: list[Value | None], tensors: Mapping[str, Any], others: Mapping[str, Any],
        outs: list[Meta | None], alphabet: Alphabet,
    ) -> None:  # fmt: skip
        self.slots, self.tensors, self.others = slots, tensors, others
        self.outs, self.alphabet = outs, alphabet

    def __contains__(self, name: str) -> bool:
        return self.tensors.get(name) is not None or self.others.get(name) is not None

    def slot(self, name: str) -> int | None:
        found = self.tensors.get(name)
        if isinstance(found, list):
            raise Unreadable(f"{name} is a list of tensors")
        return found

    def slot_list(self, name: str) -> tuple[_Int | None, ...]:
        found = self.tensors.get(name)
        if not isinstance(found, list):
            raise Unreadable(f"{name} is not a list of single tensors")
        return tuple(found)

    def values(self, name: str) -> list[Value]:
        """The operands of that name, one or a list."""
        found = self.tensors.get(name)
        slots = found if isinstance(found, list) else [found]
        values = [self.slots[slot] for slot in slots if slot is not None]
        return [value for value in values if value is not None]

    def value(self, name: str) -> Value | None:
        slot = self.slot(name)
        return None if slot is None else self.slots[slot]

    def meta(self, name: str) -> Meta:
        value = self.value(name)
        if value is None or value.meta is None:
            raise Unreadable(f"the shape of {name} is not known")
        return value.meta

    def shape(self, name: str) -> tuple[int, ...]:
        """On stand-ins."""
        return self.alphabet.numbers(self.meta(name).shape)

    def out_shape(self, index: int = 0) -> tuple[int, ...]:
        return self.alphabet.numbers(self.out(index).shape)

    def out(self, index: int = 0) -> Meta:
        meta = self.outs[index] if index < len(self.outs) else None
        if meta is None:
            raise Unreadable("the shape of the result is not known")
        return meta

    def get(self, name: str, default: Any = None) -> Any:
        """A Python value."""
        found = self.others.get(name)
        if isinstance(found, Value) or (isinstance(found, list) and any(isinstance(v, Value) for v in found)):
            raise Unreadable(f"{name} is known only at run time")
        return default if found is None else found

    def int(self, name: str, default: int | None = None) -> int:
        found = self.get(name, default)
        if found is None:
            raise Unreadable(f"{name} is not given")
        return int(found)

    def ints(self, name: str) -> tuple[_Int, ...]:
        found = self.get(name)
        if found is None:
            raise Unreadable(f"{name} is not given")
        return (int(found),) if isinstance(found, int) else tuple(int(v) for v in found)

    def array(self, name: str) -> Any:
        """The contents of a constant operand."""
        value = self.value(name)
        if value is None or value.const is None:
            raise Unreadable(f"{name} is no constant")
        return value.const.fetch()
