from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import snugfit as sf
from snugfit.errors import SettingError
from snugfit.techniques.learning.gyro_dropout import GyroDropout, draw_masks, subnetworks_of_rows
from tests.unit.techniques.settings import refuses


@pytest.mark.parametrize(
    ("setting", "value"), [("rate", 0), ("rate", 1.0), ("subnetworks", 1), ("at_once", 0), ("at_once", 257)]
)
def test_impossible_settings_are_refused(setting: str, value: float) -> None:
    refuses(GyroDropout, **{setting: value})


class Net(nn.Module):
    """Gives what dropout leaves of ones to the first logits, and keeps it."""

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.dropout = nn.Dropout(0.1)
        self.seen: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.dropout(inputs * self.scale)
        self.seen.append(outputs.detach() != 0)
        return outputs


def masks_of(
    windows: int, rows: int = 32, micro_batch: int | None = None, seed: int = 0, **settings: float
) -> list[Tensor]:
    """What dropout leaves in each window of a run."""
    net = Net()
    step = sf.Step(
        net,
        sf.SGD(learning_rate=1e-9),
        "cross_entropy",
        [GyroDropout(**settings)],
        micro_batch=micro_batch,
        seed=seed,
    )
    masks = []
    for _ in range(windows):
        del net.seen[:]
        assert step((torch.ones(rows, 40), torch.arange(rows))).applied
        masks.append(torch.cat(net.seen[-(rows // (micro_batch or rows)) :]))
    return masks


def test_a_run_has_as_many_masks_as_subnetworks_and_a_window_some_of_them() -> None:
    windows = masks_of(40, rate=0.3, subnetworks=12, at_once=4)
    assert len(torch.cat(windows).unique(dim=0)) == 12
    for window in windows:
        assert len(window.unique(dim=0)) == 4
        neighbours = window.view(4, 8, 40)  # each for an equal part of the rows, which are neighbours
        assert torch.equal(neighbours, neighbours[:, :1].expand_as(neighbours))
    assert float(torch.cat(windows).float().mean()) == pytest.approx(0.7, abs=0.06)
    assert any(not torch.equal(windows[0], each) for each in windows[1:])


def test_masks_depend_on_the_seed_and_the_row_alone() -> None:
    whole, parts, other = masks_of(3), masks_of(3, micro_batch=8), masks_of(3, seed=1)
    assert all(torch.equal(one, another) for one, another in zip(whole, parts, strict=True))
    assert not any(torch.equal(one, another) for one, another in zip(whole, other, strict=True))


def test_another_seed_has_other_subnetworks() -> None:
    one, other = (
        {tuple(mask.tolist()) for mask in masks_of(1, seed=seed, subnetworks=4, at_once=4)[0]}
        for seed in (0, 1)
    )
    assert len(one) == len(other) == 4 and not one & other


def test_each_subnetwork_is_trained_as_often_as_the_others() -> None:
    source = torch.Generator().manual_seed(0)
    rows = torch.cat([subnetworks_of_rows(8, 16, 4, source) for _ in range(800)])
    often = torch.bincount(rows, minlength=16) / len(rows)
    torch.testing.assert_close(often, torch.full((16,), 1 / 16), atol=0.012, rtol=0)
    assert len(subnetworks_of_rows(3, 16, 8, source).unique()) == 3, "fewer rows than subnetworks at once"


def test_what_is_left_has_the_size_of_before_on_average() -> None:
    masks = draw_masks(4000, 8, rate=0.25, seed=0)
    torch.testing.assert_close(masks.float().mean(dim=0), torch.full((8,), 0.75), atol=0.03, rtol=0)
    net = Net()
    step = sf.Step(net, sf.SGD(learning_rate=1e-9), "cross_entropy", [GyroDropout(rate=0.25)])
    outputs: list[Tensor] = []
    net.register_forward_hook(lambda _m, _i, output: outputs.append(output.detach()))
    step((torch.ones(32, 40), torch.arange(32)))
    assert outputs[0].unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    net.eval()
    assert torch.equal(net(torch.ones(2, 40)), torch.ones(2, 40)), "evaluation drops nothing"


def test_tokens_of_a_row_share_its_mask_and_other_forms_are_refused() -> None:
    class Tokens(Net):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs).mean(dim=1)

    net = Tokens()
    step = sf.Step(net, sf.SGD(learning_rate=1e-9), "cross_entropy", [GyroDropout()])
    step((torch.ones(6, 5, 40), torch.arange(6)))
    assert torch.equal(net.seen[-1], net.seen[-1][:, :1].expand(6, 5, 40))

    class Flat(Net):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs.flatten(0, 1)).unflatten(0, (6, 2)).mean(dim=1)

    flat = sf.Step(Flat(), sf.SGD(), "cross_entropy", [GyroDropout()])
    refusal = r"'dropout' works on \(12, 40\) for 6 rows, and a subnetwork is of the features"
    with pytest.raises(SettingError, match=refusal):
        flat((torch.ones(6, 2, 40), torch.arange(6)))


def test_modules_may_be_named_and_a_model_without_dropout_is_refused() -> None:
    model = nn.ModuleDict({"one": nn.Dropout(), "other": nn.Dropout(), "images": nn.Dropout2d()})
    assert list(GyroDropout()._modules(model)) == ["one", "other"]
    assert list(GyroDropout(dropouts=("other",))._modules(model)) == ["other"]
    with pytest.raises(
        SettingError, match="gyro_dropout.dropouts: has nothing to change: the model has no nn.Dropout"
    ):
        GyroDropout().prepare(nn.Linear(2, 2))
    with pytest.raises(SettingError, match="gyro_dropout.dropouts: 'head' matches no Dropout"):
        GyroDropout(dropouts=("head",)).prepare(model)
