from __future__ import annotations

import pytest
import torch
from torch import nn

from snugfit.core.parameters import decayed, decayed_parameters, momentum_of, parameter_groups, set_momentum
from snugfit.errors import SettingError
from snugfit.techniques.learning.lora import lora_


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


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Linear(7, 1), ["weight"]),
        (nn.Linear(1, 7), ["weight"]),
        (nn.Conv2d(1, 7, 1), ["weight"]),
        (nn.Embedding(7, 1), ["weight"]),
        (nn.GRU(1, 2), ["weight_ih_l0", "weight_hh_l0"]),
        (nn.MultiheadAttention(2, 1), ["in_proj_weight", "out_proj.weight"]),
        (nn.LayerNorm([3, 4]), []),
        (nn.RMSNorm([3, 4]), []),
        (nn.BatchNorm2d(3), []),
        (nn.ParameterList([torch.zeros(1, 7)]), []),
        (nn.ParameterList([torch.zeros(2, 7)]), ["0"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_the_module_that_holds_a_weight_says_whether_it_is_decayed(
    module: nn.Module, expected: list[str]
) -> None:
    assert [name for name, each in module.named_parameters() if each in decayed(module)] == expected


def test_an_adapter_of_rank_1_is_decayed() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    lora_(model, rank=1, targets=["0"])
    found = {name for name, each in model.named_parameters() if each in decayed(model)}
    assert {"0.lora_A.default.weight", "0.lora_B.default.weight"} <= found


def test_the_momentum_of_a_group_is_what_is_set_or_the_first_beta() -> None:
    for group in ({"momentum": 0.5}, {"betas": (0.5, 0.9)}):
        assert momentum_of(group) == 0.5
        set_momentum(group, 0.7)
        assert momentum_of(group) == 0.7
    assert group["betas"] == (0.7, 0.9)
    assert momentum_of({"lr": 0.1}) is None
    with pytest.raises(SettingError, match="neither momentum nor betas"):
        set_momentum({"lr": 0.1}, 0.7)


def test_trained_parameters_are_counted_by_their_weight_decay() -> None:
    model = Tiny()
    groups = parameter_groups(model)
    optimizer = torch.optim.AdamW(
        [{**group, "params": [p for _, p in group["params"]]} for group in groups], weight_decay=0.1
    )
    decayed = model.embedding.weight.numel() + model.conv.weight.numel()
    total = sum(p.numel() for p in model.parameters())
    assert decayed_parameters(optimizer.param_groups) == {"0.1": decayed, "0": total - decayed}
    model.embedding.weight.requires_grad_(False)
    assert decayed_parameters(optimizer.param_groups)["0.1"] == model.conv.weight.numel()
    assert decayed_parameters(torch.optim.LBFGS([model.token]).param_groups) == {}
