"""Recipes as YAML, or as the plain data that YAML stands for.

name: mine              # optional
base: mxfp4             # optional: a preset whose rules come after the own ones
rules:
  - {layout: float, name: "*lm_head*"}
  - layout: mxint8,rule=ceil
    use: attention
    role: [input, output]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import yaml

from blockscale.errors import BlockscaleError, FileError, RecipeError, UnknownNameError
from blockscale.files import written_whole
from blockscale.numerics.scheme import Scheme
from blockscale.recipe_presets import preset_rules
from blockscale.recipe_rules import RULE_KEYS, Rule

_KEYS = ("name", "base", "rules")
_SCHEME_KEYS = tuple(f.name for f in fields(Scheme))
_SUFFIXES = (".yaml", ".yml")


def is_path(text: str) -> bool:
    return "\n" not in text and text.lower().endswith(_SUFFIXES)


def read(source: str | PathLike[str]) -> tuple[str, tuple[Rule, ...]]:
    """Name and rules of a file (a path, or text that ends in .yaml or .yml) or of YAML itself."""
    if isinstance(source, PathLike) or is_path(source):
        where = fspath(source)
        return from_data(_parsed(_text_of(where), where), where)
    return from_data(_parsed(source, "recipe"), "recipe")


def from_data(data: object, where: str = "recipe") -> tuple[str, tuple[Rule, ...]]:
    """Name and rules of {"name": …, "base": …, "rules": […]}."""
    if not isinstance(data, dict) or not data:
        raise FileError(f"{where}: a recipe is a mapping with {', '.join(_KEYS)}, of which base or rules")
    _check_keys(where, data, _KEYS)
    name, base = (_text(data, key, where) for key in ("name", "base"))
    if base is None and "rules" not in data:
        raise RecipeError(
            f"{where}: neither base nor rules; write 'rules: []' for a recipe that quantizes nothing"
        )
    rules = data.get("rules", [])
    if not isinstance(rules, list):
        raise RecipeError(
            f"{_at(where, data, 'rules')}: rules must be a list, each entry starting with '- layout: …'"
        )
    own = tuple(_rule(one, where, number) for number, one in enumerate(rules, 1))
    try:
        tail = preset_rules(base) if base is not None else ()
    except BlockscaleError as error:
        raise RecipeError(f"{_at(where, data, 'base')}: {error}") from error
    return name or (base if base and not own else "custom"), own + tail


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: cannot be read as a recipe: {error}") from error


def _text(data: dict[Any, Any], key: str, where: str) -> str | None:
    value = data.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        raise RecipeError(f"{_at(where, data, key)}: {key} = {value!r}: a text (quote it)")
    return value


def _check_keys(where: str, data: dict[Any, Any], known: tuple[str, ...]) -> None:
    for key in data:
        if key not in known:
            raise RecipeError(f"{_at(where, data, key)}: {UnknownNameError('key', key, known)}")


def _rule(data: object, where: str, number: int) -> Rule:
    if isinstance(data, Rule):
        return data
    where = f"{where}, rule {number}"
    if not isinstance(data, dict) or "layout" not in data:
        raise RecipeError(
            f"{_at(where, data)}: a rule is a mapping with a layout, "
            "such as {layout: mxfp4, name: '*.mlp.*'}"
        )
    _check_keys(where, data, RULE_KEYS)
    given = _arguments(data)
    try:
        if isinstance(given["layout"], dict):
            given["layout"] = _scheme(given["layout"], where)
        return Rule(**given)
    except RecipeError:
        raise
    except (BlockscaleError, TypeError) as error:
        raise RecipeError(f"{_at(where, data)}: {error}") from error


def _scheme(data: dict[Any, Any], where: str) -> Scheme:
    where = f"{where}, layout"
    _check_keys(where, data, _SCHEME_KEYS)
    if "element" not in data:
        raise RecipeError(f"{_at(where, data)}: no element, such as fp4_e2m1")
    for key in ("tensor_scale", "zero_point", "dynamic"):
        if not isinstance(data.get(key, False), bool):
            raise RecipeError(f"{_at(where, data, key)}: {key} = {data[key]!r}: true or false")
    return Scheme(**_arguments(data))


def _arguments(data: dict[Any, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}


# ------------------------------------------------------------------------------------------ writing


def written(name: str, rules: tuple[Rule, ...]) -> str:
    """Every rule spelled out: what is kept does not change when a preset does."""
    data = {"name": name, "rules": [_rule_data(rule) for rule in rules]}
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)


def write(text: str, path: str | PathLike[str]) -> None:
    """The whole file or none."""
    with written_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def _rule_data(rule: Rule) -> dict[str, Any]:
    layout = rule.layout if isinstance(rule.layout, str) else _scheme_data(rule.layout)
    own = {"layout": layout, **rule.conditions, **rule.settings}
    data = {key: _plain(value) for key, value in own.items()}
    return data | ({"optional": True} if rule.optional else {})


def _plain(value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    return value[0] if len(value) == 1 and isinstance(value[0], str) else list(map(_plain, value))


def _scheme_data(scheme: Scheme) -> dict[str, Any]:
    """All that differs from what a Scheme has when nothing is said."""
    given = {f.name: (getattr(scheme, f.name), f.default) for f in fields(Scheme)}
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, (value, default) in given.items()
        if value != default or default is MISSING
    }


# ------------------------------------------------------------------------------------------ parsing


class _Mapping(dict[Any, Any]):
    """A mapping that knows its line, and those of its keys."""

    line = 0
    lines: dict[Any, int]


def _at(where: str, data: object, key: object = None) -> str:
    if not isinstance(data, _Mapping):
        return where
    return f"{where}, line {data.lines.get(key, data.line)}"


class _Loader(yaml.SafeLoader):
    """Plain data: no key twice, no aliases (an unquoted *name* looks like one), no merging."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="an alias", problem_mark=mark)
        return super().compose_node(parent, index)

    def lined(self, node: yaml.MappingNode) -> Iterator[_Mapping]:
        data = _Mapping()
        yield data
        data.line = node.start_mark.line + 1
        data.lines = {}
        for key, value in node.value:
            name = self.construct_object(key, deep=True)
            if not isinstance(name, str):
                shown = repr(key.value) if isinstance(key, yaml.ScalarNode) else "of several parts"
                problem = f"the key {shown} is not a name"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            if name in data:
                raise yaml.MarkedYAMLError(problem=f"{name!r} twice", problem_mark=key.start_mark)
            data[name] = self.construct_object(value, deep=True)
            data.lines[name] = key.start_mark.line + 1


_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.lined)


def _parsed(text: str, where: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        hint = "; quote a name that starts with *" if "alias" in str(error) else ""
        raise FileError(f"{where}{line}: not YAML: {error.problem}{hint}") from error
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, OverflowError) as error:
        raise FileError(f"{where}: not YAML: {error}") from error
