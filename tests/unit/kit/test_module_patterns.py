from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import nn

from snugfit.core.parameters import parameter_groups
from snugfit.errors import SettingError
from snugfit.kit.module_patterns import (
    find_head,
    find_module,
    find_modules,
    find_parameters,
    first_pattern,
    is_within,
)

ENCODER = nn.ModuleDict(
    {"encoder": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]), "head": nn.Linear(2, 2)}
)
GROUPS = parameter_groups(ENCODER)


def model() -> nn.Module:
    made = nn.ModuleDict(
        {
            "words": nn.Embedding(3, 2),
            "layers": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]),
            "fc": nn.Linear(2, 3),
        }
    )
    made["fc"].weight = made["words"].weight
    return made


def test_modules_are_found_by_their_name_or_its_end() -> None:
    assert find_modules(model(), ["1", "words"], "x") == ["words", "layers.1"]
    assert find_modules(model(), ["layers.*"], "x") == ["layers.0", "layers.1"]


def test_parameters_are_found_by_a_module_around_them_too() -> None:
    assert find_parameters(model(), ["layers"], "x") == [
        f"layers.{number}.{kind}" for number in (0, 1) for kind in ("weight", "bias")
    ]
    assert find_parameters(model(), ["*.0.bias"], "x") == ["layers.0.bias"]


def test_a_shared_weight_is_found_under_each_of_its_names_and_goes_by_the_first() -> None:
    assert find_parameters(model(), ["fc"], "x") == ["words.weight", "fc.bias"]
    assert find_parameters(model(), ["words"], "x") == ["words.weight"]


def test_a_pattern_that_matches_nothing_gets_the_nearest_name() -> None:
    with pytest.raises(
        SettingError, match=r"^x: 'wrods' matches no module of the model\. Did you mean 'words'\?$"
    ):
        find_modules(model(), ["fc", "wrods"], "x")
    with pytest.raises(
        SettingError,
        match=r"^x: 'qqq' matches no module or parameter of the model\. The model has: words, layers, fc\.$",
    ):
        find_parameters(model(), ["qqq"], "x")


def test_a_kind_of_module_is_found_among_its_kind_alone() -> None:
    assert find_modules(model(), ["*"], "x", nn.Embedding) == ["words"]
    with pytest.raises(SettingError, match=r"^x: 'fc' matches no Embedding .*\. The model has: words\.$"):
        find_modules(model(), ["fc"], "x", nn.Embedding)


def test_one_module_is_found_by_its_end_and_several_are_refused() -> None:
    made = nn.ModuleDict(
        {"body": nn.ModuleDict({"fc": nn.Linear(2, 2), "out": nn.Linear(2, 2)}), "fc": nn.Linear(2, 2)}
    )
    assert find_module(made, "out", "x") is made["body"]["out"]
    assert find_module(made, "fc", "x") is made["fc"]  # whole names are of no other
    with pytest.raises(
        SettingError, match=r"^x: '\*\.\*' matches 2 modules, such as 'body\.fc' and 'body\.out'"
    ):
        find_module(made, "*.*", "x")


@pytest.mark.parametrize("find", [find_modules, find_parameters])
def test_a_string_is_not_taken_for_a_list_of_letters(find: Callable[..., list[str]]) -> None:
    with pytest.raises(SettingError, match=r"^x: must be a list of patterns, found 'fc'\. Write \['fc'\]\.$"):
        find(model(), "fc", "x")


def test_a_head_goes_by_its_name_and_otherwise_has_to_be_said() -> None:
    assert find_head(model(), "x") == ("fc",)
    with pytest.raises(SettingError, match=r"^x: the model has no head by name .* it has: 0, 1\.$"):
        find_head(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "x")


def first_patterns(*patterns: str) -> dict[str, str | None]:
    pattern_of = first_pattern("some.setting", patterns, GROUPS)
    return {name: pattern_of(name, parameter) for name, parameter in ENCODER.named_parameters()}


@pytest.mark.parametrize(
    ("pattern", "holds"),
    [
        ("encoder.0.weight", True),
        ("encoder", True),
        ("encoder.0", True),
        ("0", True),
        ("weight", True),
        ("encoder.*.weight", True),
        ("encoder.1", False),
        ("enc", False),
        ("Encoder", False),
        ("head*", False),
    ],
)
def test_a_pattern_is_of_a_parameter_or_of_a_module_around_it(pattern: str, holds: bool) -> None:
    assert is_within("encoder.0.weight", pattern) is holds


def test_the_first_pattern_that_matches_counts() -> None:
    assert first_patterns("*.bias", "encoder.0") == {
        "encoder.0.weight": "encoder.0",
        "encoder.0.bias": "*.bias",
        "encoder.1.weight": None,
        "encoder.1.bias": "*.bias",
        "head.weight": None,
        "head.bias": "*.bias",
    }


def test_a_pattern_of_no_parameter_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(SettingError, match=r"^some\.setting: 'haed\*' matches no parameter\. .*'head'"):
        first_patterns("haed*")
    with pytest.raises(SettingError, match=r"'zzzzzz' matches no parameter\. The model has: encoder, head\."):
        first_patterns("zzzzzz")


def test_a_pattern_that_can_never_be_the_first_is_refused() -> None:
    with pytest.raises(
        SettingError, match="all parameters of 'head' match 'weight|all parameters of 'head.weight'"
    ):
        first_patterns("weight", "head.weight")
    with pytest.raises(SettingError, match=r"'encoder\.0' match 'encoder' before it.*Put 'encoder\.0' first"):
        first_patterns("encoder", "encoder.0")
