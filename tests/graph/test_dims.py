"""Sizes of the run: monomials, and primes that stand for them. What holds for a prime holds for every size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.graph.dims import Alphabet, Dim, Of, Sym, blocked, parsed, sizes_from, symbol
from blockscale.numerics.follow import Moved
from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import (
    Expand,
    Flip,
    Gather,
    Move,
    Permute,
    Repeat,
    Reshape,
    Roll,
    Slice,
    Split,
)
from blockscale.numerics.stored_moves import stored_move
from blockscale.numerics.through import lifted, through
from numerics.moving import NUMBERS, assert_lifts, assert_sinks

s, t = symbol("s"), symbol("t")


@pytest.mark.parametrize(
    ("text", "dim"),
    [
        ("s", s), ("8*s", Sym(8, (("s", 1),))), ("s*8", Sym(8, (("s", 1),))),
        ("s0**2*s1", Sym(1, (("s0", 2), ("s1", 1)))),
        ("2*s*3*s", Sym(6, (("s", 2),))), ("s + 1", symbol("s + 1")), ("(s//2)", symbol("(s//2)")),
        ("Max(1, u0)", symbol("Max(1, u0)")),
    ],
)  # fmt: skip
def test_expressions(text: str, dim: Sym) -> None:
    assert parsed(text) == dim


def test_as_text() -> None:
    assert str(Sym(8, (("s", 2), ("t", 1)))) == "8·s^2·t" and str(s) == "s"


monomials = st.one_of(
    st.integers(0, 300),
    st.builds(
        lambda c, p: Sym(c, tuple(sorted(p.items()))), st.integers(1, 300),
        st.dictionaries(st.sampled_from("stuv"), st.integers(1, 3), min_size=1, max_size=3),
    ),
)  # fmt: skip


@given(st.lists(monomials, max_size=5))
def test_there_and_back(dims: list[Dim]) -> None:
    alphabet = Alphabet()
    numbers = alphabet.numbers(tuple(dims))
    assert alphabet.dims(numbers) == tuple(dims)
    assert [alphabet.involves_symbol(n) for n in numbers] == [isinstance(d, Sym) for d in dims]


@given(monomials, monomials)
def test_products(a: Dim, b: Dim) -> None:
    alphabet = Alphabet()
    product = alphabet.dim(alphabet.number(a) * alphabet.number(b))
    sizes = {"s": 3, "t": 5, "u": 2, "v": 7}
    assert value(product, sizes) == value(a, sizes) * value(b, sizes)


def value(dim: Dim, sizes: dict[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    result = dim.coefficient
    for name, power in dim.factors:
        result *= sizes[name] ** power
    return result


@given(monomials, st.integers(0, 64))
def test_blocks(dim: Dim, b: int) -> None:
    found = blocked((dim,), (b,))
    if isinstance(found, str):
        assert isinstance(dim, Sym) and dim.coefficient % b
        return
    for sizes in ({"s": 1, "t": 2, "u": 3, "v": 4}, {"s": 5, "t": 1, "u": 1, "v": 8}):
        n = value(dim, sizes)
        assert value(found[0], sizes) == (1 if b == 0 else -(-n // b))


def test_messages_name_sizes() -> None:
    alphabet = Alphabet()
    prime = alphabet.number(Sym(8, (("batch", 1),)))
    assert alphabet.spelled(f"({prime}, 64) of 12") == "(8·batch, 64) of 12"


@pytest.mark.parametrize(
    ("target", "source", "wanted"),
    [
        ((4, 16), (8, 8), (4, 16)),
        ((s, 2, 32), (s, 64), (-1, 2, 32)),
        ((Sym(8, (("s", 1),)), 64), (s, 8, 64), (-1, 64)),
        ((s, t, 64), (s, t, 2, 32), (Of(0), -1, 64)),
        ((t, s), (s, t), (Of(1), -1)),
        ((Sym(2, (("s", 1),)), Sym(2, (("t", 1),))), (s, t, 4), None),
        ((s, 0), (s, 0), (Of(0), 0)),
    ],
)
def test_sizes_of_a_reshape(target: tuple[Dim, ...], source: tuple[Dim, ...], wanted: object) -> None:
    assert sizes_from(target, source) == wanted


# A shape of one size of the run, and moves on it; the size is asked for.
Shapes = tuple[Callable[[int], tuple[int, ...]], Callable[[int], Move]]
CASES: list[Shapes] = [
    (lambda n: (n, 8, 64), lambda n: Reshape((8 * n, 64))),
    (lambda n: (n, 8, 64), lambda n: Reshape((n, 512))),
    (lambda n: (n, 8, 64), lambda n: Reshape((n, 8, 2, 32))),
    (lambda n: (n, 8, 64), lambda n: Reshape((n, 8, 4, 16))),
    (lambda n: (n, 8, 64), lambda n: Reshape((n * 512,))),
    (lambda n: (n, 8, 64), lambda n: Reshape((64, n, 8))),
    (lambda n: (8, n, 64), lambda n: Reshape((8 * n, 64))),
    (lambda n: (8, n, 64), lambda n: Reshape((2, 4, n, 64))),
    (lambda n: (8 * n, 64), lambda n: Reshape((n, 8, 64))),
    (lambda n: (8 * n, 64), lambda n: Reshape((8, n, 64))),
    (lambda n: (4, n * 32), lambda n: Reshape((4, n, 32))),
    (lambda n: (4, n * 32), lambda n: Reshape((4 * n, 32))),
    (lambda n: (4, 8 * n), lambda n: Reshape((4, n, 8))),
    (lambda n: (n, 8, 64), lambda n: Permute((1, 0, 2))),
    (lambda n: (8, n), lambda n: Permute((1, 0))),
    (lambda n: (n, 8, 64), lambda n: Slice(1, 2, 5)),
    (lambda n: (n, 8, 64), lambda n: Slice(2, 32)),
    (lambda n: (n, 8, 64), lambda n: Split(1, (3, 5))),
    (lambda n: (n, 8, 64), lambda n: Split(2, (32, 32))),
    (lambda n: (n, 64), lambda n: Flip((0,))),
    (lambda n: (n, 64), lambda n: Flip((1,))),
    (lambda n: (1, 64), lambda n: Expand((n, 64))),
    (lambda n: (n, 1), lambda n: Expand((n, 32))),
    (lambda n: (n, 64), lambda n: Expand((3, n, 64))),
    (lambda n: (n, 32), lambda n: Repeat((1, 2))),
    (lambda n: (n, 32), lambda n: Repeat((2, 1))),
]
PRIME = Alphabet().number(s)


@settings(max_examples=400)
@given(st.data(), st.sampled_from(CASES), st.sampled_from(NUMBERS), st.booleans())
def test_what_is_legal_for_the_prime_is_for_every_size(
    data: st.DataObject, case: Shapes, numbers: object, codes: bool
) -> None:
    """And the layouts and moves of scales are the same, in terms of the size. Sizes of 1 are included."""
    shape, move = case
    block = tuple(data.draw(st.sampled_from((0, 1, 8, 16, 32))) for _ in shape(PRIME))
    stand_in = through(Layout(numbers, shape(PRIME), block), move(PRIME), codes=codes)  # type: ignore[arg-type]
    if not isinstance(stand_in, Moved) or any(n >= PRIME for after in stand_in.after for n in after.block):
        return  # refused, or a block would have a size of the run, which is refused too
    for n in (1, 2, 3, 8, 13, 64):
        before = Layout(numbers, shape(n), block)  # type: ignore[arg-type]
        found = through(before, move(n), codes=codes)
        after = [Layout(one.numbers, size, one.block) for one, size in zip(
            stand_in.after, move(n).shapes(shape(n)), strict=True)]  # fmt: skip
        assert isinstance(found, Moved), f"size {n}: {found}"
        scales = [one.scale_shape for one in found.after]
        assert [one.scale_shape for one in after] == scales, f"size {n}: {found.after} and {after}"
        moved = Moved(
            (before,), tuple(after), found.codes, found.scale, found.inverse, found.equal, found.at_zero_point
        )
        (assert_sinks if codes else assert_lifts)(before, move(n), moved, n)


@settings(max_examples=200)
@given(st.data(), st.sampled_from(CASES), st.sampled_from([n for n in NUMBERS if n.element_format.packed]))
def test_packed_codes_too(data: st.DataObject, case: Shapes, numbers: object) -> None:
    shape, move = case
    block = tuple(data.draw(st.sampled_from((0, 1, 16, 32))) for _ in move(PRIME).shapes(shape(PRIME))[0])
    after = [Layout(numbers, one, block) for one in move(PRIME).shapes(shape(PRIME))]  # type: ignore[arg-type]
    moved = lifted(after[0], move(PRIME), shape(PRIME))
    if not isinstance(moved, Moved) or not isinstance(stored_move(moved, move(PRIME), 0), Move):
        return
    for n in (1, 2, 8, 13):
        same = lifted(Layout(numbers, move(n).shapes(shape(n))[0], block), move(n), shape(n))  # type: ignore[arg-type]
        assert isinstance(same, Moved) and isinstance(stored_move(same, move(n), 0), Move)


@pytest.mark.parametrize("block", [(1, 0), (1, 8), (0, 0), (32, 1)])
@pytest.mark.parametrize(
    "move",
    [
        lambda n: Reshape((8, n)), lambda n: Permute((1, 0)), lambda n: Flip((0,)), lambda n: Slice(0, 1, None, 2),
        lambda n: Slice(1, 0, None), lambda n: Split(0, (n - 32, 32)), lambda n: Gather(0, (2, 0, 1)),
        lambda n: Gather(1, (1, 0, 2, 3, 4, 5, 6, 7)), lambda n: Repeat((2, 1)), lambda n: Expand((3, n, 8)),
        lambda n: Roll((1,), (1,)),
    ],
)  # fmt: skip
def test_products_of_many_sizes(block: tuple[int, ...], move: Callable[[int], Move]) -> None:
    """Of five, which no int64 holds: the answer of one. Nothing is listed, and nothing overflows."""
    n = Alphabet().number(Sym(1, tuple((name, 1) for name in "stuvw")))
    assert n > 1 << 63
    for numbers in NUMBERS:
        many = through(Layout(numbers, (n, 8), block), move(n))
        one = through(Layout(numbers, (PRIME, 8), block), move(PRIME))
        assert type(many) is type(one)
