from __future__ import annotations

import pytest
import torch
from torch import nn

from snugfit.core.parameters import momentum_of, parameter_groups, set_momentum, takes_decay
from snugfit.errors import SettingError


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, 4))
        self.norm1 = nn.LayerNorm(4)
        self.bn = nn.BatchNorm1d(4)
        self.conv = nn.Conv1d(4, 4, 3)
        self.scale = nn.Parameter(torch.zeros(()))
        self.head = nn.Linear(4, 5)
        self.head.weight = self.embedding.weight


def names(group: dict[str, object]) -> list[str]:
    return [name for name, _ in group["params"]]  # type: ignore[attr-defined]


def test_matrices_are_decayed_and_vectors_are_not() -> None:
    decay, no_decay = parameter_groups(Tiny())
    assert names(decay) == ["embedding.weight", "conv.weight"]
    assert names(no_decay) == [
        "token",
        "scale",
        "norm1.weight",
        "norm1.bias",
        "bn.weight",
        "bn.bias",
        "conv.bias",
        "head.bias",
    ]
    assert "weight_decay" not in decay and no_decay["weight_decay"] == 0.0


def test_each_parameter_is_in_one_group_once_also_a_tied_one() -> None:
    model = Tiny()
    given = [id(parameter) for group in parameter_groups(model) for _, parameter in group["params"]]
    assert sorted(given) == sorted(id(parameter) for parameter in model.parameters())


def test_a_frozen_parameter_is_included_so_that_it_trains_once_unfrozen() -> None:
    model = nn.Linear(3, 3)
    model.weight.requires_grad_(False)
    assert names(parameter_groups(model)[0]) == ["weight"]


def test_a_group_without_parameters_is_left_out() -> None:
    assert [group["name"] for group in parameter_groups(nn.LayerNorm(3))] == ["no_decay"]


def test_a_matrix_of_one_row_is_a_vector() -> None:
    assert not takes_decay(nn.Parameter(torch.zeros(1, 7)))
    assert takes_decay(nn.Parameter(torch.zeros(2, 7)))


def test_the_momentum_of_a_group_is_what_is_set_or_the_first_beta() -> None:
    for group in ({"momentum": 0.5}, {"betas": (0.5, 0.9)}):
        assert momentum_of(group) == 0.5
        set_momentum(group, 0.7)
        assert momentum_of(group) == 0.7
    assert group["betas"] == (0.7, 0.9)
    assert momentum_of({"lr": 0.1}) is None
    with pytest.raises(SettingError, match="neither momentum nor betas"):
        set_momentum({"lr": 0.1}, 0.7)
