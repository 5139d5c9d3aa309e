"""Networks for tables, beside the same computed number by number, and TabM beside networks that stand alone."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from snugfit.errors import ModelError
from snugfit.models.table_network import (
    MemberCrossEntropy,
    MemberSquaredError,
    NetworkSettings,
    TableNetwork,
    network_settings,
)

EDGES = [[-1.0, 0.0, 2.0], [], [-0.5, 0.5, 0.6, 1.0]]
SIZES = [3, 4]


def network(kind: str = "tabm", classes: int = 3) -> TableNetwork:
    settings = NetworkSettings(network=kind, width=8, blocks=2, members=4, embedding=5, dropout=0.0)
    return TableNetwork(
        settings=settings, edges=EDGES, sizes=SIZES, classes=classes, middle=100.0, spread=20.0
    )


def rows(count: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    codes = [torch.randint(0, size, (count,), generator=generator) for size in SIZES]
    return torch.randn(count, len(EDGES), generator=generator), torch.stack(codes, dim=1)


def moved(model: nn.Module) -> nn.Module:
    """The same with members that have learned something of their own."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def test_numbers_go_through_their_bins() -> None:
    model = moved(network("mlp").make())
    numbers, _ = rows()
    for column, edges in enumerate(EDGES):
        for row in range(len(numbers)):
            value = float(numbers[row, column])
            expected = value * model.numbers.linear[column] + model.numbers.bias[column]
            for place, (low, high) in enumerate(itertools.pairwise(edges)):
                expected = (
                    expected
                    + float(np.clip((value - low) / (high - low), 0, 1)) * model.numbers.bins[column, place]
                )
            ours = model.numbers(numbers).reshape(len(numbers), len(EDGES), -1)[row, column]
            torch.testing.assert_close(ours, expected.relu())


def test_each_member_is_a_network_with_weights_of_its_own() -> None:
    model = moved(network().make()).train()
    numbers, codes = rows()
    together = model(numbers, codes)
    assert together.shape == (6, 4, 3)
    for member in range(4):
        values = torch.cat([model.numbers(numbers), model.categories(codes)], dim=1)
        for layer in (model.body[0], model.body[3]):
            weight = layer.shared.weight * layer.scale_out[member][:, None] * layer.scale_in[member]
            values = (values @ weight.T + layer.bias[member]).relu()
        alone = values @ model.head.weight[member] + model.head.bias[member]
        torch.testing.assert_close(together[:, member], alone)
    mean = together.softmax(dim=-1).mean(dim=1)
    torch.testing.assert_close(model.eval()(numbers, codes).exp(), mean)


def test_members_begin_apart() -> None:
    members = network().make().train()(*rows())
    assert (members[:, 0] - members[:, 1]).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["tabm", "mlp"])
def test_a_number_is_put_out_in_its_own_unit(kind: str) -> None:
    model = network(kind, classes=0).make()
    numbers, codes = rows()
    outputs = model(numbers, codes)
    assert outputs.shape == (6,) and 40 < outputs.mean().item() < 160
    if kind == "tabm":
        torch.testing.assert_close(model.train()(numbers, codes).mean(dim=1), outputs)


def test_the_loss_is_the_mean_of_the_members_losses() -> None:
    model = moved(network().make()).train()
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    logits = model(*rows())
    terms = MemberCrossEntropy()(logits, {"labels": labels})
    alone = [nn.functional.cross_entropy(logits[:, member], labels) for member in range(4)]
    torch.testing.assert_close(terms.weighted_sum() / terms.weight(), torch.stack(alone).mean())
    numbers = moved(network(classes=0).make()).train()(*rows())
    targets = torch.linspace(50, 150, 6)
    squared = MemberSquaredError(20.0)(numbers, {"labels": targets})
    mean = ((numbers - targets[:, None]) / 20).square().mean()
    torch.testing.assert_close(squared.weighted_sum() / squared.weight(), mean)


def test_an_unknown_category_begins_as_nothing() -> None:
    model = network().make()
    assert not model.categories(torch.tensor([[0, 0]])).any()
    assert model.categories(torch.tensor([[1, 3]])).any()


def test_the_same_seed_and_json_make_the_same_network() -> None:
    torch.manual_seed(5)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    one = network().make(3)
    assert torch.equal(torch.rand(1), drawn)
    two = TableNetwork.of(json.loads(json.dumps(network().as_dict()))).make(3)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert all(each.is_meta for each in network().make(empty=True).parameters())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"network": "resnet"}', "has network: 'resnet'"),
        ('{"depth": 2}', "has 'depth', which no network for tables has"),
        ('{"width": 0}', "has width: 0"),
        ('{"width": true}', "has width: True"),
        ('{"dropout": 1}', "has dropout: 1"),
        ("[1]", "holds no settings"),
        ("{", "cannot be read"),
    ],
)
def test_a_file_of_settings_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "net.json").write_text(text)
    with pytest.raises(ModelError, match=message):
        network_settings("net.json", tmp_path)


def test_settings_of_a_network_are_a_name_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "net.json").write_text('{"network": "mlp", "width": 32, "bins": 0}')
    assert network_settings("net.json", tmp_path) == NetworkSettings(network="mlp", width=32, bins=0)
    assert network_settings("tabm") == NetworkSettings()
    with pytest.raises(ModelError, match="'gpt2' is no network for tables.*Write tabm or mlp"):
        network_settings("gpt2")
