"""Recipes as AMD Quark would mean them: MX and BFP in its dialects, on whatever tensors its quantizer takes."""

from __future__ import annotations

from dataclasses import replace

from blockscale.errors import CombinationError
from blockscale.numerics.scheme import Scheme
from blockscale.recipe import Given, Recipe, recipe_of
from blockscale.recipe_presets import is_preset, parts_of
from blockscale.recipe_rules import ROLES, Rule, scheme_text

DIALECTS = ("quark", "quark_compiler")


def quark_recipe(given: Given) -> Recipe:
    """A Scheme and a preset's name are about all tensors: `X` for each, `X-Y` for constants and for activations,
    `X-float` for constants alone. Of other recipes the rules stay, in Quark's dialect; without a role a rule is
    about every one.
    """
    if isinstance(given, str) and is_preset(given):
        weight, inputs = parts_of(given)
        rules = [Rule(weight, role=("weight", "bias"))]
        if inputs is not None:
            rules = [Rule(weight)] if inputs == weight else [*rules, Rule(inputs, role=("input", "output"))]
        return Recipe([_in_its_dialect(rule, 1 + i) for i, rule in enumerate(rules)], given)
    recipe = Recipe([Rule(given)], scheme_text(given)) if isinstance(given, Scheme) else recipe_of(given)
    return Recipe([_in_its_dialect(rule, 1 + i) for i, rule in enumerate(recipe.rules)], recipe.name)


def _in_its_dialect(rule: Rule, number: int) -> Rule:
    scheme = rule.scheme
    if scheme is None:
        return rule
    if scheme.family != "mx" or scheme.dialect not in ("ocp", *DIALECTS):
        raise CombinationError(
            f"compat='quark' with rule {number} ({rule}): AMD Quark's operators have the six MX formats, bfpN and mx9, "
            "mx6, mx4, in its own dialect; name one of them, or leave compat out"
        )
    dialect = scheme.dialect if scheme.dialect in DIALECTS else DIALECTS[0]
    return replace(rule, dialect=dialect, role=rule.role if rule.role is not None else ROLES)
