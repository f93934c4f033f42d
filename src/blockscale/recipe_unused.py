"""Which rule wins where, and rules that never apply: why, and the nearest name that exists."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from blockscale.recipe_rules import DTYPES, Operand, Rule

_NAMES = {
    "name": "node",
    "tensor": "tensor",
    "kind": "kind",
    "op_type": "op_type",
}  # condition → what it is about


def winners(rules: Sequence[Rule], operands: Sequence[Operand]) -> list[int | None]:
    """For each operand the index of the first rule that matches."""
    return [next((r for r, rule in enumerate(rules) if rule.matches(one)), None) for one in operands]


def unused(rules: Sequence[Rule], operands: Sequence[Operand], won: Sequence[int | None]) -> list[str]:
    """A message for each rule that gives no operand its layout, but for those that may (`optional`).

    A recipe that asks for layouts and gives none is an error even where each of its rules is optional.
    """
    applied = set(won)
    problems = []
    for r, rule in enumerate(rules):
        if r in applied or rule.optional:
            continue
        shadows = {w for w, one in zip(won, operands, strict=True) if w is not None and rule.matches(one)}
        title = f"rule {r + 1} ({rule})"
        if shadows:
            by = " and ".join(f"rule {w + 1} ({rules[w]})" for w in sorted(shadows))
            problems.append(
                f"{title} never applies: {by} comes first for all that it matches. "
                "Put it before, or remove it"
            )
        else:
            problems.append(f"{title} matches nothing. {_nearest(rule, operands)}")
    layouts = [r for r, rule in enumerate(rules) if rule.scheme is not None]
    if layouts and not problems and not applied.intersection(layouts):
        problems.append(f"no tensor gets a layout. {_nearest(rules[layouts[-1]], operands)}")
    return problems


# ------------------------------------------------------------------------------- what was meant


def _nearest(rule: Rule, operands: Sequence[Operand]) -> str:
    if not operands:
        return "The model has no tensor that could be quantized"
    misspelt = _misspelt(rule, operands)
    if misspelt:
        return " ".join(misspelt)

    def distance(operand: Operand) -> tuple[int, bool]:
        """Of two that fail as many conditions the one that is named."""
        failed = rule.failed(operand)
        return len(failed), not _NAMES.keys().isdisjoint(failed)

    nearest = min(operands, key=distance)
    failed = rule.failed(nearest)
    if not failed:
        return f"A float rule comes first for {nearest}"
    reason = f"The nearest is {nearest}, but for its {' and '.join(failed)}"
    if "dtype" in failed and nearest.dtype not in DTYPES:
        reason += f": its dtype is {nearest.dtype}, not {', '.join(DTYPES)}: cast it"
    return reason


def _misspelt(rule: Rule, operands: Sequence[Operand]) -> list[str]:
    """For each name that occurs nowhere: the one that was meant."""
    hints = []
    for key, attribute in _NAMES.items():
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


def _close(pattern: str, known: Iterable[str]) -> str | None:
    """The known name nearest to a pattern: compared with whole names and with their ends."""
    wanted = _plain(pattern)
    of_end: dict[str, str] = {}
    for name in known:
        parts = re.split(r"([./])", name)
        for start in range(0, len(parts), 2):
            of_end.setdefault("".join(parts[start:]), name)
    close = get_close_matches(wanted, of_end, n=1, cutoff=0.6)
    return of_end[close[0]] if close else None


def _plain(pattern: str) -> str:
    """A pattern without its signs, as near to a name as that gets: `re:.*\\.\\d+\\.mlp` → `0.mlp`."""
    if not pattern.startswith("re:"):
        return re.sub(r"[*?]", "", pattern).strip("./")
    text = re.sub(r"\\d[+*]?|\[0-9\][+*]?", "0", pattern[3:])
    text = re.sub(r"\(\?[a-zA-Z]*[:)]|\.[*+]|[][(){}|+*?^$\\]", "", text)
    return text.strip("./")
