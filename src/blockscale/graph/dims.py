"""Sizes that are not known before the run: monomials such as 8·b, and prime stand-ins for rules on integers.

The rules of `numerics.through` work on integers. A symbol is replaced by a prime above every block and
every usual size, so nothing divides it and it divides only its own multiples: what holds for the prime
holds for every size (tests/graph/test_dims.py tries them). Sizes go back by factoring the primes out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# The first is also the limit: a block of at least this size came out of a symbol.
_FIRST_PRIME = 100_003


@dataclass(frozen=True)
class Sym:
    """coefficient · Π symbol^power, with at least one symbol."""

    coefficient: int
    factors: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        parts = [str(self.coefficient)] if self.coefficient != 1 else []
        parts += [name if power == 1 else f"{name}^{power}" for name, power in self.factors]
        return "·".join(parts)

    def divided(self, by: int) -> Sym | None:
        """The quotient, where it is whole for every value of the symbols."""
        if self.coefficient % by:
            return None
        return Sym(self.coefficient // by, self.factors)


Dim = int | Sym
Dims = tuple[Dim, ...]


def symbol(name: str) -> Sym:
    return Sym(1, ((name, 1),))


_FACTOR = re.compile(r"^(?:(\d+)|([A-Za-z_]\w*)(?:\*\*(\d+))?)$")


def parsed(expression: str) -> Sym:
    """`8*s0`, `s0**2*s1`; whatever is not a monomial becomes a symbol of its own."""
    powers: dict[str, int] = {}
    coefficient = 1
    for part in re.sub(r"\s+", "", expression).replace("**", "^").split("*"):
        match = _FACTOR.match(part.replace("^", "**"))
        if match is None:
            return symbol(expression)
        if match[1]:
            coefficient *= int(match[1])
        else:
            powers[match[2]] = powers.get(match[2], 0) + int(match[3] or 1)
    return Sym(coefficient, tuple(sorted(powers.items()))) if powers else symbol(expression)


class Alphabet:
    """The symbols of one graph and their primes."""

    def __init__(self) -> None:
        self._prime_of: dict[str, int] = {}
        self._symbol_of: dict[int, str] = {}
        self._next = _FIRST_PRIME

    def number(self, dim: Dim) -> int:
        """The stand-in of a size."""
        if isinstance(dim, int):
            return dim
        result = dim.coefficient
        for name, power in dim.factors:
            result *= self._prime(name) ** power
        return result

    def numbers(self, dims: Dims) -> tuple[int, ...]:
        return tuple(d if d.__class__ is int else self.number(d) for d in dims)

    def dim(self, number: int) -> Dim:
        """The size that a stand-in, or a product or exact quotient of such, stands for."""
        powers: dict[str, int] = {}
        if abs(number) >= _FIRST_PRIME:
            for prime, name in self._symbol_of.items():
                while number and number % prime == 0:
                    number //= prime
                    powers[name] = powers.get(name, 0) + 1
        return Sym(number, tuple(sorted(powers.items()))) if powers else number

    def dims(self, numbers: tuple[int, ...]) -> Dims:
        return tuple(self.dim(n) for n in numbers)

    def spelled(self, text: str) -> str:
        """A message with sizes in place of their stand-ins."""
        return re.sub(r"\d{6,}", lambda number: str(self.dim(int(number[0]))), text)

    def involves_symbol(self, number: int) -> bool:
        return not isinstance(self.dim(number), int)

    def _prime(self, name: str) -> int:
        found = self._prime_of.get(name)
        if found is None:
            found = self._next
            while not _is_prime(found):
                found += 2
            self._next = found + 2
            self._prime_of[name], self._symbol_of[found] = found, name
        return found


def _is_prime(n: int) -> bool:
    return n % 2 != 0 and all(n % d for d in range(3, int(n**0.5) + 1, 2))


def blocked(dims: Dims, block: tuple[int, ...]) -> Dims | str:
    """ceil(dims / block), a block of 0 being the whole dimension; or why it cannot be written."""
    result: list[Dim] = []
    for dim, b in zip(dims, block, strict=True):
        if b == 0:
            result.append(1)
        elif isinstance(dim, int):
            result.append(-(-dim // b))
        else:
            quotient = dim.divided(b)
            if quotient is None:
                return f"a size known only at run time, {dim}, is cut into blocks of {b}"
            result.append(quotient)
    return tuple(result)


@dataclass(frozen=True)
class Of:
    """The size of dimension `index` of the operand, read when the model runs."""

    index: int


def sizes_from(target: Dims, source: Dims) -> tuple[int | Of, ...] | None:
    """`target` as a reshape of a tensor of `source` can say it: at most one size is left to it as -1.

    None where two sizes would have to be computed.
    """
    result: list[int | Of] = []
    unknown = 0
    for i, dim in enumerate(target):
        if isinstance(dim, int):
            result.append(dim)
        elif i < len(source) and source[i] == dim:
            result.append(Of(i))
        elif dim in source:
            result.append(Of(source.index(dim)))
        else:
            unknown += 1
            result.append(-1)
    if unknown == 0 and 0 not in target:
        run_time = [i for i, size in enumerate(result) if isinstance(size, Of)]
        if run_time:  # one of them costs nothing
            result[run_time[-1]] = -1
    return tuple(result) if unknown <= 1 else None
