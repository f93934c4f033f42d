"""Rules that never apply: which, why, and the nearest name that exists."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from blockscale.recipe_rules import Operand, Rule


@dataclass(frozen=True)
class Matches:
    """first[i]: index of the rule that operand i gets; all[r]: indices of operands that rule r matches."""

    first: list[int | None]
    all: list[list[int]]


def matched(rules: Sequence[Rule], operands: Sequence[Operand]) -> Matches:
    found: list[list[int]] = [[] for _ in rules]
    first: list[int | None] = [None] * len(operands)
    for i, operand in enumerate(operands):
        for r, rule in enumerate(rules):
            if rule.matches(operand):
                found[r].append(i)
                if first[i] is None:
                    first[i] = r
    return Matches(first, found)


def unused(rules: Sequence[Rule], operands: Sequence[Operand], matches: Matches) -> list[str]:
    """A message for each rule that gives no operand its layout, but for those that may (`optional`)."""
    hit = set(matches.first)
    problems = []
    for r, rule in enumerate(rules):
        if r in hit or rule.optional:
            continue
        if matches.all[r]:
            problems.append(_shadowed(r, rules, matches))
        else:
            problems.append(f"rule {r + 1} ({rule}) matches nothing. {_nearest(rule, operands)}")
    return problems


def _shadowed(r: int, rules: Sequence[Rule], matches: Matches) -> str:
    winners = sorted({first for i in matches.all[r] if (first := matches.first[i]) is not None})
    by = " and ".join(f"rule {w + 1} ({rules[w]})" for w in winners)
    count = len(matches.all[r])
    return (
        f"rule {r + 1} ({rules[r]}) never applies: {by} comes first for "
        f"{'the one tensor' if count == 1 else f'all {count} tensors'} it matches. "
        f"Put it before, or remove it"
    )


# ------------------------------------------------------------------------------- what was meant


def _nearest(rule: Rule, operands: Sequence[Operand]) -> str:
    if not operands:
        return "The model has no tensor that could be quantized"
    hints = _misspelt(rule, operands) or _one_condition(rule, operands)
    return " ".join(hints) if hints else "No tensor meets any two of its conditions; see Recipe.explain"


def _misspelt(rule: Rule, operands: Sequence[Operand]) -> list[str]:
    """For each name that occurs nowhere: the one that was meant."""
    hints = []
    for key, attribute in (("name", "node"), ("tensor", "tensor"), ("kind", "kind")):
        wanted = getattr(rule, key)
        if wanted is None or any(key not in rule.failed(operand) for operand in operands):
            continue
        known = list(dict.fromkeys(getattr(operand, attribute) for operand in operands))
        for name in wanted:
            close = _close(name, known)
            if close:
                hints.append(f"No {key} fits {name!r}; did you mean {close!r}?")
            else:
                shown = ", ".join(map(repr, known[:5])) + (", …" if len(known) > 5 else "")
                hints.append(f"No {key} fits {name!r}; there are {shown}.")
    return hints


def _one_condition(rule: Rule, operands: Sequence[Operand]) -> list[str]:
    """The conditions that alone keep it from matching."""
    fails: dict[str, list[Operand]] = {}
    for operand in operands:
        failed = rule.failed(operand)
        if len(failed) == 1:
            fails.setdefault(failed[0], []).append(operand)
    return [
        f"Without {'its role' if key == 'role' else key} it would match {len(found)}, such as {found[0]}."
        + (f" Its roles are {', '.join(rule.roles)}." if key == "role" else "")
        for key, found in fails.items()
    ]


def _close(pattern: str, known: Iterable[str]) -> str | None:
    """The known name nearest to a glob: compared with whole names and with their ends."""
    wanted = re.sub(r"^re:|[*?\\^$]", "", pattern).strip("./")
    of_end: dict[str, str] = {}
    for name in known:
        parts = re.split(r"([./])", name)
        for start in range(0, len(parts), 2):
            of_end.setdefault("".join(parts[start:]), name)
    close = get_close_matches(wanted, of_end, n=1, cutoff=0.6)
    return of_end[close[0]] if close else None
