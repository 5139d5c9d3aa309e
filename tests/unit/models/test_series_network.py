"""The network for series: quantiles that never cross, weights by the seed, settings that are checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from snugfit.errors import ModelError
from snugfit.models.series_network import SeriesNetwork, SeriesSettings, series_settings

SETTINGS = SeriesSettings(width=16, blocks=2, step_width=4, step_layers=8, covariates=2, dropout=0.1)


def network(
    known: int = 3, past: int = 1, quantiles: tuple[float, ...] = (0.1, 0.5, 0.7, 0.9)
) -> SeriesNetwork:
    return SeriesNetwork(settings=SETTINGS, history=6, horizon=4, known=known, past=past, quantiles=quantiles)


def inputs(known: int = 3, past: int = 1, rows: int = 50, scale: float = 1.0) -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(1)
    return {
        "history": scale * torch.randn(rows, 6, generator=drawn),
        "observed": torch.ones(rows, 6),
        "known": scale * torch.randn(rows, 10, known, generator=drawn),
        "past": scale * torch.randn(rows, 6, past, generator=drawn),
    }


@pytest.mark.parametrize("quantiles", [(0.1, 0.5, 0.7, 0.9), (0.5,), (0.05, 0.25, 0.5), (0.5, 0.99)])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_quantiles_never_cross_whatever_the_weights_and_the_inputs(
    quantiles: tuple[float, ...], scale: float
) -> None:
    model = network(quantiles=quantiles).make(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    outputs = model(**inputs(scale=scale))
    assert outputs["logits"].shape == (50, 4, len(quantiles))
    assert (outputs["logits"].diff(dim=-1) >= 0).all()
    assert torch.equal(outputs["levels"], torch.tensor(quantiles).expand(50, -1))


@pytest.mark.parametrize(("known", "past"), [(0, 0), (3, 0), (0, 2), (2, 3)])
def test_every_input_that_there_is_reaches_the_median(known: int, past: int) -> None:
    model = network(known, past).make(0)
    given = {name: values.requires_grad_() for name, values in inputs(known, past).items()}
    model(**given)["logits"][..., 1].square().sum().backward()
    for name, values in given.items():
        if values.numel():
            assert values.grad is not None and values.grad.abs().sum() > 0, name


def test_a_row_does_not_hang_on_the_others() -> None:
    model = network().make(0)
    whole = model(**inputs())["logits"]
    alone = model(**{name: values[7:8] for name, values in inputs().items()})["logits"]
    torch.testing.assert_close(alone[0], whole[7], atol=1e-5, rtol=1e-5)


def test_it_is_made_again_from_json_and_drawn_by_its_seed() -> None:
    own = network()
    again = SeriesNetwork.of(json.loads(json.dumps(own.as_dict())))
    one, two, other = own.make(3), again.make(3), own.make(4)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(next(iter(one.parameters())), next(iter(other.parameters())))
    assert next(iter(own.make(0, empty=True).parameters())).is_meta


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"widht": 3}', "has 'widht', which no network for series has. Did you mean 'width'"),
        ('{"width": 0}', "has width: 0. Write a whole number from 1"),
        ('{"blocks": true}', "has blocks: True"),
        ('{"dropout": 1}', "has dropout: 1. Write a number from 0 to below 1"),
        ("[3]", "holds no settings"),
        ("{", "cannot be read"),
    ],
)
def test_settings_that_are_none_are_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "net.json").write_text(text)
    with pytest.raises(ModelError, match=words):
        series_settings("net.json", tmp_path)


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match="model: 'tabm' is no network for series. Write tide, or a JSON file"
    ):
        series_settings("tabm")
    (tmp_path / "net.json").write_text('{"width": 32}')
    assert series_settings("net.json", tmp_path) == SeriesSettings(width=32)
    assert series_settings("tide") == SeriesSettings()
