from __future__ import annotations

import pytest
from torch import nn

from snugfit.core.parameters import parameter_groups
from snugfit.errors import SettingError
from snugfit.kit.parameter_patterns import is_within, matching

MODEL = nn.ModuleDict({"encoder": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]), "head": nn.Linear(2, 2)})
GROUPS = parameter_groups(MODEL)


def found(*patterns: str) -> dict[str, str | None]:
    pattern_of = matching("some.setting", patterns, GROUPS)
    return {name: pattern_of(name, parameter) for name, parameter in MODEL.named_parameters()}


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
    assert found("*.bias", "encoder.0") == {
        "encoder.0.weight": "encoder.0",
        "encoder.0.bias": "*.bias",
        "encoder.1.weight": None,
        "encoder.1.bias": "*.bias",
        "head.weight": None,
        "head.bias": "*.bias",
    }


def test_a_pattern_of_no_parameter_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(SettingError, match=r"^some\.setting: 'haed\*' matches no parameter\. .*'head'"):
        found("haed*")
    with pytest.raises(SettingError, match=r"'zzzzzz' matches no parameter\. The model has: encoder, head\."):
        found("zzzzzz")


def test_a_pattern_that_can_never_be_the_first_is_refused() -> None:
    with pytest.raises(
        SettingError, match="all parameters of 'head' match 'weight|all parameters of 'head.weight'"
    ):
        found("weight", "head.weight")
    with pytest.raises(SettingError, match=r"'encoder\.0' match 'encoder' before it.*Put 'encoder\.0' first"):
        found("encoder", "encoder.0")
