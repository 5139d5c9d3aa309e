from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from snugfit.errors import SnugfitWarning
from snugfit.models.bundle import load_bundle, save_bundle
from snugfit.techniques.placement.channels_last import ChannelsLast, channels_last_
from tests.laws import problems


def test_convolutions_are_laid_out_and_nothing_else() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv3d(2, 4, 3), nn.Linear(8, 2))
    assert channels_last_(model) == 2
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert model[1].weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert model[2].weight.is_contiguous()


def test_a_model_without_convolutions_is_told() -> None:
    with pytest.warns(SnugfitWarning, match="^channels_last: does nothing, as the model has no convolution"):
        ChannelsLast().prepare(nn.Linear(2, 2))


def test_parameters_stay_the_same_objects_with_the_same_values() -> None:
    model = nn.Conv2d(3, 8, 3)
    weight, values = model.weight, model.weight.detach().clone()
    assert ChannelsLast().prepare(model) is model
    assert model.weight is weight
    assert torch.equal(model.weight, values)


def test_the_layout_lasts_through_updates_resume_and_outputs() -> None:
    techniques = (ChannelsLast(),)
    problem = problems.viewer(techniques)
    step, resumed = (problems.make_step(problem, techniques, model_seed=seed) for seed in (1, 2))
    for window in problem.windows():
        step(window)
    resumed.load_state_dict(problems.saved(step))
    for trained in (step, resumed):
        conv = trained.model.blocks[0][1]
        assert conv.weight.is_contiguous(memory_format=torch.channels_last)
        outputs = conv(torch.randn(2, 4, 8, 8, dtype=torch.float64))
        assert outputs.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("make", [problems.viewer, problems.vit])
def test_the_model_is_delivered_with_the_same_weights(make: problems.Maker, tmp_path: Path) -> None:
    problem = make((ChannelsLast(),))
    model = ChannelsLast().prepare(problem.model(torch.float32))
    save_bundle(tmp_path / "best", model, {})
    other = None if make is problems.vit else problem.model(torch.float32, seed=2)
    loaded, _, _ = load_bundle(tmp_path / "best", model=other)
    for name, weight in model.named_parameters():
        assert torch.equal(loaded.get_parameter(name), weight)
