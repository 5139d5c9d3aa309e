"""What holds for each technique's module, card, tests and docs; techniques are discovered, never listed."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import pkgutil
import re
import typing
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import snugfit.techniques
from snugfit.core.technique import Context, Family, Technique, as_settings
from snugfit.errors import SettingError
from snugfit.recipe.entries import settings_of
from snugfit.recipe.strict_yaml import read_value
from snugfit.techniques import discover, find, of_alias, suggestion
from snugfit.tools.certify.technique_laws import card_faults

ROOT = Path(__file__).resolve().parents[3]
TECHNIQUES = list(discover().values())
FAMILIES = [family.value for family in Family]


def modules() -> list[str]:
    return [
        f"snugfit.techniques.{family}.{module.name}"
        for family in FAMILIES
        for module in pkgutil.iter_modules(importlib.import_module(f"snugfit.techniques.{family}").__path__)
    ]


def name_of(technique: type[Technique]) -> str:
    return technique.card.name


def test_a_module_defines_one_technique_named_like_its_file() -> None:
    for module in modules():
        defined = [
            value
            for value in vars(importlib.import_module(module)).values()
            if isinstance(value, type) and issubclass(value, Technique) and value.__module__ == module
        ]
        assert len(defined) == 1
        assert defined[0].card.name == module.rpartition(".")[2]
        assert defined[0] is discover()[defined[0].card.name]
        assert defined[0].card.family == module.split(".")[2]


OF_OTHER_TYPES = ("text", "", None, True, ["text"], {"text": "text"}, [0.5, None], 1j, torch.ones(2))


@pytest.mark.parametrize("technique", TECHNIQUES, ids=name_of)
def test_a_setting_of_another_type_is_refused_by_name_and_nothing_else_is_raised(
    technique: type[Technique],
) -> None:
    given = as_settings(technique.example())
    for setting in given:
        for value in OF_OTHER_TYPES:
            with contextlib.suppress(SettingError):
                technique(**{**given, setting: value})
        with pytest.raises(SettingError, match=rf"^{name_of(technique)}\.{setting}: .*<object object"):
            technique(**{**given, setting: object()})


def test_lists_and_numbers_of_numpy_become_what_they_are_in_a_recipe() -> None:
    adamw = find("adamw")(learning_rate=np.float32(0.5), betas=[0.9, np.float32(0.5)])  # type: ignore[call-arg]
    assert as_settings(adamw) | {"learning_rate": 0.5, "betas": (0.9, 0.5)} == as_settings(adamw)
    assert type(as_settings(adamw)["learning_rate"]) is float
    assert type(as_settings(find("lookahead")(every=np.int64(3)))["every"]) is int  # type: ignore[call-arg]
    assert as_settings(find("clip_norm")(max_norm=np.float64("inf")))["max_norm"] == float("inf")  # type: ignore[call-arg]


def test_the_families_are_all_the_packages_there_are() -> None:
    found = {module.name for module in pkgutil.iter_modules(snugfit.techniques.__path__) if module.ispkg}
    assert found == set(FAMILIES)


def a_technique_has_a_test_a_page_and_an_oracle(technique: type[Technique]) -> None:
    name = technique.card.name
    test = ROOT / "tests" / "unit" / "techniques" / f"test_{name}.py"
    page = ROOT / "docs" / "techniques" / f"{name}.md"
    oracle = ROOT / "tests" / "oracles" / f"{name}.py"
    assert "def test_" in test.read_text()
    assert "def train(" in oracle.read_text()
    assert "snugfit" not in oracle.read_text(), "an oracle shares no code with the package"
    text = page.read_text()
    code = "\n".join(line for line in text.splitlines() if line.startswith((">>> ", "... ")))
    own = f"from {technique.__module__} import" in code
    assert own or "torch.optim" in code or "torch.nn.utils" in code or "sf." in code, (
        "the page executes neither the technique's own functions, nor torch's that it takes"
    )
    for other in technique.card.conflicts:
        assert f"`{other}`" in text, f"{page.name} does not name the conflict with {other}"


def the_table_of_a_page_has_the_defaults_of_the_settings(technique: type[Technique]) -> None:
    page = ROOT / "docs" / "techniques" / f"{technique.card.name}.md"
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|", page.read_text(), re.MULTILINE)
    fields = {field.name: field for field in dataclasses.fields(technique)}
    assert [name for name, _ in rows] == list(fields)
    for name, cell in rows:
        default = fields[name].default
        if default is dataclasses.MISSING:
            assert not cell.strip(), f"'{name}' has to be given"
        else:
            assert read_value(cell.strip(), page.name) == default, name


def it_is_found_by_the_names_that_others_give_it(technique: type[Technique]) -> None:
    page = (ROOT / "docs" / "techniques" / f"{technique.card.name}.md").read_text()
    assert not technique.card.aliases or f"*Elsewhere called {', '.join(technique.card.aliases)}.*" in page
    for alias in technique.card.aliases:
        assert of_alias(alias) == technique.card.name  # and no other is called so
        assert suggestion(alias.upper(), discover()) == f"It is called '{technique.card.name}' here."


def test_each_page_is_of_a_technique_and_the_index_takes_all_of_them() -> None:
    index = (ROOT / "docs" / "techniques" / "index.md").read_text()
    toctree = index.partition("```{toctree}")[2].partition("```")[0].split()
    assert ":glob:" in toctree and toctree[-1] == "*", "a new page would have to be listed by hand"
    pages = {page.stem for page in (ROOT / "docs" / "techniques").glob("*.md")}
    assert pages - {"index", "matrix"} == set(discover()), (
        "a page without its technique, or the other way round"
    )


def settings_are_a_frozen_dataclass(technique: type[Technique]) -> None:
    assert dataclasses.is_dataclass(technique)
    made = technique.example()
    assert made == technique.example()
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.card = None  # type: ignore[misc]


def the_card_says_what_whoever_chooses_needs_to_know(technique: type[Technique]) -> None:
    card = technique.card
    for text in (card.summary, card.source, card.cost, card.use_when):
        assert text.strip() == text and text
    assert card.summary.endswith(".")
    assert len(card.summary) <= 120
    assert inspect.getdoc(technique)


def two_layers() -> nn.Module:
    """One that is not the head, and the head."""
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


def the_card_names_the_seams_that_are_filled(technique: type[Technique]) -> None:
    seams = technique.example().seams(Context(two_layers(), torch.device("cpu"), total_updates=10))
    assert not card_faults(technique.example(), seams)


def conflicts_name_techniques_that_exist_with_a_reason_and_a_remedy(technique: type[Technique]) -> None:
    for other, reason in technique.card.conflicts.items():
        assert other in discover() and other != technique.card.name
        assert len(reason.split()) >= 5 and reason.endswith(".")


def making_settings_and_seams_leaves_the_model_alone(technique: type[Technique]) -> None:
    model = two_layers()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    technique.example().seams(Context(model, torch.device("cpu"), total_updates=10))
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True))


def a_technique_can_be_an_entry_of_a_set_as_the_planner_has_it(technique: type[Technique]) -> None:
    """Also one with settings that are mappings."""
    assert len({technique.example(), technique.example()}) == 1


RULES = (
    a_technique_has_a_test_a_page_and_an_oracle,
    the_table_of_a_page_has_the_defaults_of_the_settings,
    it_is_found_by_the_names_that_others_give_it,
    settings_are_a_frozen_dataclass,
    the_card_says_what_whoever_chooses_needs_to_know,
    the_card_names_the_seams_that_are_filled,
    conflicts_name_techniques_that_exist_with_a_reason_and_a_remedy,
    making_settings_and_seams_leaves_the_model_alone,
    a_technique_can_be_an_entry_of_a_set_as_the_planner_has_it,
)


@pytest.mark.filterwarnings("ignore:.* does nothing")
@pytest.mark.parametrize("technique", TECHNIQUES, ids=name_of)
def test_a_technique_keeps_each_rule(technique: type[Technique]) -> None:
    for rule in RULES:
        rule(technique)


def test_an_unknown_technique_gets_the_nearest_name() -> None:
    some = next(iter(discover()))
    with pytest.raises(SettingError, match=f"techniques: no technique '{some}x'. Did you mean '{some}'?"):
        find(f"{some}x")
    with pytest.raises(
        SettingError, match="optimizer: no technique 'qqqq'. List techniques with `snugfit techniques`"
    ):
        find("qqqq", "optimizer")


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("AdamW", "It is called 'adamw' here."),
        ("gradient checkpoint", "Did you mean 'recompute'?"),  # a part of an alias
        ("mixed precision", "Did you mean 'bf16' or 'fp16' or 'master_weights'?"),
        (
            "early stopping",
            "List techniques with `snugfit techniques`, other settings with `snugfit recipe`.",
        ),
    ],
)
def test_an_unknown_technique_is_looked_for_in_what_all_are_called(asked: str, hint: str) -> None:
    assert suggestion(asked, discover()) == hint


def lists_of_patterns() -> list[tuple[type[Technique], str]]:
    return [
        (technique, setting)
        for technique in TECHNIQUES
        for setting, (annotation, _) in settings_of(technique).items()
        if tuple[str, ...] in (annotation, *typing.get_args(annotation))
    ]


@pytest.mark.parametrize(
    ("technique", "setting"), lists_of_patterns(), ids=lambda given: getattr(given, "__name__", given)
)
def test_a_string_in_place_of_a_list_of_patterns_is_refused(technique: type[Technique], setting: str) -> None:
    beside = {"patterns": ()} if setting == "all_but" and technique is find("freeze") else {}
    with pytest.raises(
        SettingError,
        match=rf"^{name_of(technique)}\.{setting}: must be a list of names.*, found 'classifier'. Write \['classifier'\]\.$",
    ):
        technique(**{**as_settings(technique.example()), **beside, setting: "classifier"})


def test_equal_settings_that_are_mappings_have_one_hash_and_others_another() -> None:
    (rates,) = (each for each in TECHNIQUES if each.card.name == "pattern_rates")
    one, same, other = (rates(rates=each) for each in ({"a": 2, "b": 3}, {"b": 3, "a": 2}, {"a": 2, "b": 4}))
    assert one == same and hash(one) == hash(same) != hash(other)
