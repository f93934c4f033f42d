"""`Recipe`: rules that say which tensors get which layout. The first rule that matches wins; what none
matches stays float; a rule that never applies is an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockscale import recipe_yaml
from blockscale.errors import ArgumentError, RecipeError
from blockscale.numerics.scheme import Scheme
from blockscale.recipe_presets import names, preset_rules
from blockscale.recipe_rules import FLOAT, Operand, Region, Rule, bound, scheme_text
from blockscale.recipe_unused import unused, winners

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Assignment", "Explanation", "Operand", "Recipe", "Rule", "lists_operands", "names", "recipe_of"]


@dataclass(frozen=True)
class Assignment:
    """What an operand gets. `rule_number` counts from 1, as messages and documents do; None: no rule matched.

    `scheme` has its axis bound to the operand; None: float. Static activations (`scheme.dynamic` false) need
    calibration, nothing else does: parameters of weights always come from their own values.
    """

    operand: Operand
    rule_number: int | None
    rule: Rule | None
    scheme: Scheme | None
    why: str


@dataclass(frozen=True)
class Recipe:
    """Rules in order, and a name for reports. `base` is a preset whose rules come after the given ones."""

    rules: tuple[Rule, ...]
    name: str = "custom"

    def __init__(self, rules: Iterable[Rule], name: str = "custom", *, base: str | None = None) -> None:
        rules = tuple(rules)
        for number, rule in enumerate(rules, 1):
            if not isinstance(rule, Rule):  # users come without types
                raise ArgumentError(f"rule {number}", rule, "a Rule")
        if not name:
            raise ArgumentError("name", name, "a text")
        if base is not None:
            rules += preset_rules(base)
        object.__setattr__(self, "rules", rules)
        object.__setattr__(self, "name", name)

    @staticmethod
    def preset(name: str) -> Recipe:
        """`X`, `X-Y`, `X-float`, each also with `-all`; see docs/recipes.md and `names()`."""
        return Recipe(preset_rules(name), name)

    @staticmethod
    def from_yaml(source: str | PathLike[str]) -> Recipe:
        """From a file (a path, or text that ends in .yaml or .yml) or from YAML itself."""
        name, rules = recipe_yaml.read(source)
        return Recipe(rules, name)

    def to_yaml(self, path: str | PathLike[str] | None = None) -> str:
        """YAML that `from_yaml` reads back to an equal recipe; with a path, also written there."""
        text = recipe_yaml.written(self.name, self.rules)
        if path is not None:
            recipe_yaml.write(text, path)
        return text

    @property
    def regions(self) -> tuple[Region, ...]:
        """What rules are between; a lister of operands finds them in the graph."""
        return tuple(dict.fromkeys(rule.between for rule in self.rules if rule.between is not None))

    def assign(self, operands: Iterable[Operand]) -> list[Assignment]:
        """What each operand gets. RecipeError: a tensor cannot take its layout, or a rule never applies."""
        operands = list(operands)
        won = winners(self.rules, operands)
        problems = unused(self.rules, operands, won)
        if problems:
            raise RecipeError("\n".join(f"recipe {self.name!r}: {problem}" for problem in problems))
        return [self._assigned(operand, hit) for operand, hit in zip(operands, won, strict=True)]

    def _assigned(self, operand: Operand, hit: int | None) -> Assignment:
        if hit is None:
            return Assignment(operand, None, None, None, "no rule matches")
        rule = self.rules[hit]
        try:
            return Assignment(operand, hit + 1, rule, bound(rule, operand), f"rule {hit + 1} ({rule})")
        except RecipeError as error:
            raise RecipeError(f"recipe {self.name!r}, rule {hit + 1}: {error}") from error

    def explain(self, model: object) -> Explanation:
        """Every tensor of a model (or of a list of Operands), the rule that hit and the layout.

        Never fails for what `assign` refuses: that is listed as problems.
        """
        operands = _operands_of(model, self.regions)
        won = winners(self.rules, operands)
        problems = unused(self.rules, operands, won)
        rows = []
        for operand, hit in zip(operands, won, strict=True):
            try:
                rows.append(self._assigned(operand, hit))
            except RecipeError as error:
                assert hit is not None  # no rule, no refusal
                problems.append(str(error))
                rows.append(Assignment(operand, hit + 1, self.rules[hit], None, _IMPOSSIBLE))
        return Explanation(self, tuple(rows), tuple(problems))


Given = str | PathLike[str] | Recipe | Rule | Scheme | Sequence[Rule] | Mapping[str, Any]


def recipe_of(value: Given) -> Recipe:
    """A recipe from what users give: a Recipe, a preset's name, the path of a .yaml file, rules, a mapping as
    YAML would say it, or a Scheme (for the weights and inputs of linear, conv and matmul by a constant, and
    nothing else).
    """
    if isinstance(value, Recipe):
        return value
    if isinstance(value, Scheme):
        return Recipe([Rule(value, use="linear", role=("input", "weight"))], name=scheme_text(value))
    if isinstance(value, Rule):
        return Recipe([value])
    if isinstance(value, str | PathLike):
        text = fspath(value)
        is_file = isinstance(value, PathLike) or recipe_yaml.is_path(text)
        return Recipe.from_yaml(Path(text)) if is_file else Recipe.preset(text)
    if isinstance(value, Mapping):
        name, rules = recipe_yaml.from_data(dict(value))
        return Recipe(rules, name)
    if isinstance(value, list | tuple):
        return Recipe(value)
    raise ArgumentError(
        "recipe", value,
        "a preset's name, the path of a .yaml file, a Recipe, a list of Rules, a mapping or a Scheme",
    )  # fmt: skip


# ------------------------------------------------------------------------------- explaining a recipe

# What lists the operands of a model lies in a higher layer, and `api` brings it.
Lister = Callable[[Any, Sequence[Region]], Iterable[Operand]]
_LISTER: list[Lister] = []


def lists_operands(lister: Lister) -> None:
    """`lister(model, regions)` gives the operands of a model, or says why it cannot read it."""
    _LISTER[:] = [lister]


def _operands_of(model: object, regions: Sequence[Region]) -> list[Operand]:
    if isinstance(model, list | tuple) and all(isinstance(one, Operand) for one in model):
        return list(model)
    if not _LISTER:
        raise ArgumentError(
            "model", type(model).__name__, "a list of Operands, unless blockscale.api is loaded"
        )
    return list(_LISTER[0](model, regions))


def _layout(row: Assignment) -> str:
    if row.why == _IMPOSSIBLE:
        return _IMPOSSIBLE
    return FLOAT if row.scheme is None else scheme_text(row.scheme)


_IMPOSSIBLE = "impossible"
_COLUMNS = ("node", "kind", "role", "tensor", "shape", "rule", "layout")


@dataclass(frozen=True)
class Explanation:
    """A table as text (`str`), for rich (`rich.print`) or as data (`to_dict`, `to_json`)."""

    recipe: Recipe
    rows: tuple[Assignment, ...]
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe.name,
            "rules": [str(rule) for rule in self.recipe.rules],
            "tensors": [
                {
                    "node": row.operand.node,
                    "kind": row.operand.kind,
                    "role": row.operand.role,
                    "index": row.operand.index,
                    "tensor": row.operand.tensor,
                    "dtype": row.operand.dtype,
                    "shape": list(row.operand.shape),
                    "rule": row.rule_number,
                    "layout": _layout(row),
                    "dynamic": None if row.scheme is None else row.scheme.dynamic,
                    "why": row.why,
                }
                for row in self.rows
            ],
            "problems": list(self.problems),
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    def _cells(self) -> list[tuple[str, ...]]:
        return [
            (
                row.operand.node,
                row.operand.kind,
                f"{row.operand.role} {row.operand.index}",
                row.operand.tensor,
                "×".join("?" if n is None else str(n) for n in row.operand.shape),
                "-" if row.rule_number is None else str(row.rule_number),
                _layout(row),
            )
            for row in self.rows
        ]

    def __str__(self) -> str:
        table = [_COLUMNS, *self._cells()]
        widths = [max(len(row[i]) for row in table) for i in range(len(_COLUMNS))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table
        ]
        rules = [f"rule {number}: {rule}" for number, rule in enumerate(self.recipe.rules, 1)]
        problems = [f"problem: {problem}" for problem in self.problems]
        return "\n".join(
            line.rstrip() for line in [f"recipe {self.recipe.name}", *rules, "", *lines, *problems]
        )

    def __rich__(self) -> Table:
        from rich.markup import escape
        from rich.table import Table

        table = Table(title=escape(f"recipe {self.recipe.name}"), caption=escape("\n".join(self.problems)))
        for column in _COLUMNS:
            table.add_column(column, overflow="fold")
        for row in self._cells():
            table.add_row(*map(escape, row))
        return table
