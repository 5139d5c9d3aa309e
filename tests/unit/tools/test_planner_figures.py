"""What the planner says about a setup."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import snugfit as sf
from snugfit.planner.devices.hardware import find_device
from snugfit.tools.planner_figures import Predicted
from snugfit.tools.setup import Setup, module_setup


def setup_of(model: nn.Module, **settings: object) -> Setup:
    data = TensorDataset(torch.randn(16, 8), torch.arange(16) % 3)
    return module_setup(model, data, global_batch=16, device="cpu", **settings)  # type: ignore[arg-type]


def test_fewer_micro_batches_launch_less() -> None:
    setup = setup_of(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)))
    gain = Predicted(setup, find_device("t4"), micro_batch=2).gain("micro_batch")
    assert gain is not None and gain > 2


def test_a_change_that_cannot_be_made_has_no_gain() -> None:
    setup = setup_of(nn.Linear(8, 3), techniques=[sf.BF16()])
    assert Predicted(setup, find_device("cpu"), micro_batch=16).gain("bf16") is None


def test_asking_leaves_model_and_randomness_as_they_were() -> None:
    model = nn.Linear(8, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    setup = setup_of(model, optimizer=optimizer)
    weight, state = model.weight.detach().clone(), torch.get_rng_state()
    use = Predicted(setup, find_device("cpu"), micro_batch=16).memory()
    assert use.basis == "predicted" and use.by_kind["optimizer"] >= 2 * 4 * (8 * 3 + 3)
    assert torch.equal(model.weight, weight) and torch.equal(torch.get_rng_state(), state)
    assert not optimizer.state


class Texts(list[tuple[torch.Tensor, torch.Tensor]]):
    """Rows that say how many tokens each of them has."""

    lengths = (1, 2, 3, 4) * 4


def test_windows_in_tokens_are_planned_as_windows_of_examples() -> None:
    rows = Texts((torch.randn(8), torch.tensor(place % 3)) for place in range(16))
    setup = module_setup(nn.Linear(8, 3), rows, batch_tokens=12, epochs=2, device="cpu")
    use = Predicted(setup, find_device("cpu"), micro_batch=2)
    assert use.subject.total_updates == setup.windows and use.subject.job.train.batch_tokens is None
    assert use.memory().basis == "predicted" and use.first_update().basis == "predicted"


def test_a_model_that_asks_for_numbers_has_no_gain() -> None:
    class Asking(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = super().forward(x)
            return y if y.sum().item() > 0 else -y

    assert Predicted(setup_of(Asking(8, 3)), find_device("cpu"), micro_batch=8).gain("micro_batch") is None
    with pytest.raises(sf.UserError):
        Predicted(setup_of(Asking(8, 3)), find_device("cpu"), micro_batch=8).memory()
