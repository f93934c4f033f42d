"""YAML and Python say the same recipes."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockscale.errors import ArgumentError, BlockscaleError, FileError, RecipeError
from blockscale.numerics.scheme import PRESETS, Scheme, scheme_named
from blockscale.recipe import Recipe, Rule, names, recipe_of

TEXT = """
name: mine
base: mxfp4
rules:
  - {layout: float, name: "*lm_head*"}
  - layout: mxint8,rule=ceil
    use: attention
    role: [input, output]
  - layout: {element: int8, scale: bf16, axis: -1, block: 64}
    tensor: re:layers\\.\\d+\\.weight
    min_size: 1000
"""
SCHEME = Scheme(element="int8", scale="bf16", axis=-1, block=64)
RULES = [
    Rule("float", name="*lm_head*"),
    Rule("mxint8,rule=ceil", use="attention", role=("input", "output")),
    Rule(SCHEME, tensor=r"re:layers\.\d+\.weight", min_size=1000),
]


def test_yaml_is_what_python_says() -> None:
    assert Recipe.from_yaml(TEXT) == Recipe(RULES, "mine", base="mxfp4")
    assert recipe_of({"name": "mine", "base": "mxfp4", "rules": RULES}) == Recipe.from_yaml(TEXT)


def test_a_base_alone_is_the_preset() -> None:
    assert Recipe.from_yaml("base: mxfp4-float") == Recipe.preset("mxfp4-float")
    assert Recipe.from_yaml("base: mxfp4-float\nrules: []") == Recipe.preset("mxfp4-float")


def test_rules_of_the_base_come_last() -> None:
    own = Rule("float", name="*lm_head*")
    assert Recipe([own], base="mxfp4").rules == (own, *Recipe.preset("mxfp4").rules)


@pytest.mark.parametrize("name", names())
def test_presets_round_trip(name: str) -> None:
    assert Recipe.from_yaml(Recipe.preset(name).to_yaml()) == Recipe.preset(name)


# ------------------------------------------------------------------------------------ round trip

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
GLOBS = TEXTS.filter(lambda text: not text.startswith("re:"))
SEVERAL = st.one_of(GLOBS, st.lists(GLOBS, min_size=1, max_size=3).map(tuple))
CONDITIONS = st.fixed_dictionaries(
    {},
    optional={
        "name": SEVERAL, "tensor": SEVERAL, "kind": SEVERAL, "op_type": SEVERAL,
        "between": st.tuples(SEVERAL, SEVERAL),
        "role": st.sampled_from(["input", "weight", ("bias", "output")]),
        "use": st.sampled_from(["linear", ("norm", "residual")]),
        "dtype": st.sampled_from(["f32", ("bf16", "f16")]),
        "index": st.integers(0, 5), "head": st.booleans(), "min_rank": st.integers(0, 4),
        "min_size": st.integers(0, 100), "max_size": st.integers(100, 1 << 40), "optional": st.booleans(),
    },
)  # fmt: skip
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "axis": st.one_of(st.integers(-3, 3), st.sampled_from([(-2, -1), (0, 1)])),
        "rule": st.sampled_from(["floor", "rceil"]),
        "rounding": st.sampled_from(["half_even", "stochastic"]),
    },
)
SCHEMES = st.sampled_from(PRESETS).map(scheme_named)
RULE = st.one_of(
    st.builds(
        lambda layout, more: Rule(layout, **more), st.one_of(st.sampled_from(PRESETS), SCHEMES), CONDITIONS
    ),
    st.builds(lambda more: Rule("float", **more), CONDITIONS),
    st.builds(lambda more, settings: Rule("mxfp4", **more, **settings), CONDITIONS, SETTINGS),
)


@given(st.lists(RULE, max_size=4), TEXTS)
def test_round_trip(rules: list[Rule], name: str) -> None:
    recipe = Recipe(rules, name)
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe


def test_only_what_is_given_is_written() -> None:
    recipe = Recipe(
        [Rule("mxfp4", name="*.mlp.*"), Rule("int8", role=("input", "output"), dynamic=False)], "x"
    )
    assert recipe.to_yaml() == (
        "name: x\n"
        "rules:\n"
        "- layout: mxfp4\n"
        "  name: '*.mlp.*'\n"
        "- layout: int8\n"
        "  role:\n"
        "  - input\n"
        "  - output\n"
        "  dynamic: false\n"
    )


# ------------------------------------------------------------------------------------ files


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    recipe = Recipe(RULES, "mine", base="mxfp4")
    text = recipe.to_yaml(path)
    assert path.read_text(encoding="utf-8") == text
    assert [p.name for p in tmp_path.iterdir()] == ["mine.yaml"]
    assert (
        Recipe.from_yaml(path)
        == Recipe.from_yaml(str(path))
        == recipe_of(path)
        == recipe_of(str(path))
        == recipe
    )


def test_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "mine.yml"
    path.write_text("old", encoding="utf-8")
    path.chmod(0o640)
    Recipe.preset("mxfp4").to_yaml(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").mkdir()
    with pytest.raises(FileError, match="cannot be written"):
        Recipe.preset("mxfp4").to_yaml(tmp_path / "mine.yaml")
    assert [p.name for p in tmp_path.iterdir()] == ["mine.yaml"]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", None])
def test_unreadable_files(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FileError, match=r"x\.yaml: cannot be read as a recipe"):
        Recipe.from_yaml(path)


# ------------------------------------------------------------------------------------ bad YAML


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "a recipe is a mapping with name, base, rules"),
        ("", "a recipe is a mapping"),
        ("name: x", "neither base nor rules; write 'rules: []'"),
        ("rule: []", "line 1: key = 'rule': allowed are name, base, rules; did you mean 'rules'"),
        ("rules: {}", "line 1: rules must be a list"),
        ("rules:\n", "line 1: rules must be a list"),
        ("name: 8\nbase: mxfp4", "line 1: name = 8: a text (quote it)"),
        ("name: x\nbase: mxpf4", "line 2: preset = 'mxpf4'"),
        ("rules:\n- mxfp4", "rule 1: a rule is a mapping with a layout"),
        ("rules:\n- layout: float\n- {name: x}", "rule 2, line 3: a rule is a mapping with a layout"),
        ("rules:\n- layout: mxfp4\n  nmae: x", "rule 1, line 3: key = 'nmae'"),
        ("rules:\n- layout: mxfp4\n\n- layout: mxpf4", "rule 2, line 4: format = 'mxpf4'"),
        ("rules:\n- {layout: mxfp4, role: [input, wheight]}", "did you mean 'weight'"),
        ("rules:\n- {layout: {scale: e8m0}}", "rule 1, layout, line 2: no element, such as fp4_e2m1"),
        ("rules:\n- {layout: {elment: int8}}", "rule 1, layout, line 2: key = 'elment'"),
        ("rules:\n- {layout: {element: int8, scale: f32, zero_point: 1}}", "zero_point = 1: true or false"),
        ("rules:\n- {layout: {element: int8}}", "rule 1, line 2: "),
        ("rules:\n- layout: mxfp4\n  name: *lm_head*", "; quote a name that starts with *"),
        ("rules:\n- {layout: mxfp4, layout: float}", "line 2: not YAML: 'layout' twice"),
        ("{1: 2}", "line 1: not YAML: the key '1' is not a name"),
        ("{[1, 2]: 2}", "line 1: not YAML: the key of several parts is not a name"),
        ("a: [", "not YAML"),
        ("a: !!python/object:os.system 1", "not YAML"),
        ("a: &x 1\nb: *x", "not YAML: an alias"),
    ],
)
def test_bad_yaml_says_where(text: str, message: str) -> None:
    with pytest.raises(BlockscaleError) as caught:
        Recipe.from_yaml(text)
    assert isinstance(caught.value, FileError | RecipeError)
    assert message in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_is_a_recipe_or_a_named_error_fuzz(text: str) -> None:
    try:
        Recipe.from_yaml(text + "\n")
    except (FileError, RecipeError):
        return


# ------------------------------------------------------------------------------------ what users give


def test_recipe_of() -> None:
    recipe, rule = Recipe.preset("mxfp4"), Rule("mxfp4", name="x")
    assert recipe_of(recipe) is recipe
    assert recipe_of("mxfp4") == recipe
    assert recipe_of([rule]) == recipe_of((rule,)) == recipe_of(rule) == Recipe([rule])
    scheme = scheme_named("mxfp4")
    assert recipe_of(scheme).rules == (Rule(scheme, use="linear", role=("input", "weight")),)


@pytest.mark.parametrize("value", [None, 4, {"rules"}, b"mxfp4"])
def test_recipe_of_nothing(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"a preset's name, the path of a \.yaml file"):
        recipe_of(value)
