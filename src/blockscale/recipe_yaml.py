"""Recipes as YAML.

name: mine              # optional
base: mxfp4             # optional: a preset whose rules come after the own ones
rules:
  - {layout: float, name: "*lm_head*"}
  - layout: mxint8,rule=ceil
    use: attention
    role: [input, output]
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import MISSING, fields
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import yaml

from blockscale.errors import BlockscaleError, FileError, RecipeError, UnknownNameError
from blockscale.numerics.scheme import Scheme
from blockscale.recipe_presets import names, preset_rules
from blockscale.recipe_rules import RULE_KEYS, Rule

_KEYS = ("name", "base", "rules")
_SCHEME_KEYS = tuple(f.name for f in fields(Scheme))
_SUFFIXES = (".yaml", ".yml")


def is_path(text: str) -> bool:
    return "\n" not in text and text.lower().endswith(_SUFFIXES)


def read(source: str | PathLike[str]) -> tuple[str, tuple[Rule, ...]]:
    """Name and rules."""
    text, where = source, "recipe"
    if isinstance(source, PathLike) or is_path(source):
        where = fspath(source)
        text = _text_of(Path(where), where)
    data = _parsed(str(text), where)
    if not isinstance(data, dict) or not data:
        raise FileError(f"{where}: a recipe is a mapping with {', '.join(_KEYS)}")
    _check_keys(where, data, _KEYS)
    try:
        base = _text(data, "base")
        name = _text(data, "name")
        tail = preset_rules(base) if base is not None else ()
    except BlockscaleError as error:
        raise RecipeError(f"{where}: {error}") from error
    rules = data.get("rules") or []
    if not isinstance(rules, list):
        raise RecipeError(f"{where}: rules must be a list, each entry starting with '- layout: …'")
    own = tuple(_rule(one, f"{where}, rule {number}") for number, one in enumerate(rules, 1))
    return name or (base if base and not own else "custom"), own + tail


def _text_of(path: Path, where: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise FileError(f"{where}: cannot be read as a recipe: {error}") from error


def _text(data: dict[str, Any], key: str) -> str | None:
    value = data.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        raise RecipeError(f"{key} = {value!r}: a text (quote it)")
    return value


def _check_keys(where: str, data: dict[Any, Any], known: tuple[str, ...]) -> None:
    for key in data:
        if key not in known:
            raise RecipeError(f"{where}: {UnknownNameError('key', key, known)}")


def _rule(data: object, where: str) -> Rule:
    if not isinstance(data, dict) or "layout" not in data:
        raise RecipeError(
            f"{where}: a rule is a mapping with a layout, such as {{layout: mxfp4, name: '*.mlp.*'}}"
        )
    _check_keys(where, data, RULE_KEYS)
    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
    }
    try:
        if isinstance(given["layout"], dict):
            given["layout"] = _scheme(given["layout"], where)
        return Rule(**given)
    except (BlockscaleError, TypeError) as error:
        raise RecipeError(f"{where}: {error}") from error


def _scheme(data: dict[str, Any], where: str) -> Scheme:
    _check_keys(f"{where}, layout", data, _SCHEME_KEYS)
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    return Scheme(**given)


# ------------------------------------------------------------------------------------------ writing


def written(name: str, rules: tuple[Rule, ...]) -> str:
    data: dict[str, Any] = {"name": name}
    base = _base(name, rules)
    if base is not None:
        data["base"] = base
        rules = rules[: len(rules) - len(preset_rules(base))]
    if rules or base is None:
        data["rules"] = [_rule_data(rule) for rule in rules]
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)


def _base(name: str, rules: tuple[Rule, ...]) -> str | None:
    """The preset with the most rules that these end in; of equal ones, that of the recipe's name."""
    found: dict[str, int] = {}
    for preset in (name, *names()):
        try:
            tail = preset_rules(preset)
        except BlockscaleError:  # the recipe's own name need not be one
            continue
        if rules[-len(tail) :] == tail:
            found[preset] = len(tail)
    return max(found, key=found.__getitem__, default=None)


def _rule_data(rule: Rule) -> dict[str, Any]:
    layout = rule.layout if isinstance(rule.layout, str) else _scheme_data(rule.layout)
    own = {"layout": layout, **rule.conditions, **rule.settings}
    data = {key: _plain(value) for key, value in own.items()}
    return data | ({"optional": True} if rule.optional else {})


def _plain(value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    return value[0] if len(value) == 1 and isinstance(value[0], str) else list(value)


def _scheme_data(scheme: Scheme) -> dict[str, Any]:
    """All that differs from what a Scheme has when nothing is said."""
    given = {f.name: (getattr(scheme, f.name), f.default) for f in fields(Scheme)}
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, (value, default) in given.items()
        if value != default or default is MISSING
    }


# ------------------------------------------------------------------------------------------ parsing


class _Loader(yaml.SafeLoader):
    """Plain data: no key twice, no aliases (an unquoted *name* looks like one)."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="an alias; quote a name that starts with *", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _parsed(text: str, where: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        hint = "; quote a name that starts with *" if "*" in str(error) else ""
        raise FileError(f"{where}{line}: not YAML: {error.problem}{hint}") from error
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        raise FileError(f"{where}: not YAML: {error}") from error
