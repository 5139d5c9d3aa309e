"""A window stays as it is, also where forward changes its inputs in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.errors import SettingError
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.techniques.learning.sgd import SGD
from tests.unit.run.training.runs import events, finish, make_training


class Centring(nn.Module):
    """Centres its rows, in place or not; on a device with room for `most` of them."""

    def __init__(self, in_place: bool, most: int = 99) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
        self.in_place, self.most = in_place, most

    def forward(self, rows: Tensor) -> Tensor:
        rows = rows if self.in_place else rows.clone()
        rows.sub_(1.0).mul_(1.5)
        logits: Tensor = self.body(rows)
        if len(rows) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return logits


def window(number: int = 0) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(number)
    return torch.randn(8, 2, generator=source), torch.arange(8) % 3


def trained(model: nn.Module, windows: int = 2, **settings: Any) -> Tensor:
    step = Step(model, SGD(learning_rate=0.1), **settings)
    for number in range(windows):
        step(window(number))
    return torch.cat([each.detach().flatten() for each in step.parameters])


@pytest.mark.parametrize("micro_batch", [None, 2])
@pytest.mark.parametrize(
    ("most", "names"), [(99, ["sam"]), (99, ["hard_examples"]), (4, []), (99, [])], ids=str
)
def test_a_window_that_is_run_again_has_the_inputs_of_the_first_time(
    most: int, names: list[str], micro_batch: int | None
) -> None:
    one, other = (
        trained(
            Centring(in_place, most), techniques=[find(name)() for name in names], micro_batch=micro_batch
        )
        for in_place in (True, False)
    )
    assert torch.equal(one, other)


def test_what_the_user_gave_is_not_changed() -> None:
    inputs, labels = window()
    before = inputs.clone()
    step = Step(Centring(in_place=True), SGD(learning_rate=0.1), micro_batch=2)
    step((inputs, labels))
    assert torch.equal(inputs, before) and step.inputs.copied is True
    evaluate(Scored.of(step), [Batch.of((inputs, labels))], {})
    assert torch.equal(inputs, before)


def test_the_loss_sees_what_forward_made_of_its_inputs_as_in_torch() -> None:
    class Doubling(nn.Linear):
        def forward(self, rows: Tensor) -> Tensor:
            return super().forward(rows.mul_(2.0))

    seen: list[Tensor] = []

    def loss(outputs: Tensor, data: tuple[Tensor, Tensor]) -> Tensor:
        seen.append(data[0])
        return outputs.mean(dim=1)

    step = Step(Doubling(2, 3), SGD(learning_rate=0.1), loss)
    step(window())
    assert torch.equal(seen[0], 2.0 * window()[0])


def test_inputs_that_stay_as_they_are_are_copied_in_the_first_window_only() -> None:
    seen: list[int] = []
    step = Step(Centring(in_place=False), SGD(learning_rate=0.1), micro_batch=4)
    step.model.register_forward_pre_hook(lambda _, args: seen.append(args[0].untyped_storage().data_ptr()))
    first, second = window(), window(1)
    step(first), step(second)
    assert first[0].untyped_storage().data_ptr() not in seen[:2]
    assert seen[2:] == [second[0].untyped_storage().data_ptr()] * 2
    assert step.inputs.copied is False


def test_a_later_window_that_is_changed_is_not_run_again_but_refused() -> None:
    model = Centring(in_place=False)
    step = Step(model, SGD(learning_rate=0.1), techniques=[find("sam")()])
    step(window())
    model.in_place = True
    before = {name: each.clone() for name, each in model.state_dict().items()}
    with pytest.raises(SettingError, match=r"forward: changes its inputs in place"):
        step(window(1))
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert step(window(2)).applied, "from then on it gets copies"


class _PastTheCounters(Centring):
    """Writes by a way that torch's version counters do not see."""

    def __init__(self, by: str) -> None:
        super().__init__(in_place=False)
        self.by = by

    def forward(self, rows: Tensor) -> Tensor:
        if self.by == "numpy":
            rows.numpy()[:] *= 2
        elif self.by == "data":
            rows.data.mul_(2)
        return super().forward(rows)


@pytest.mark.parametrize(("by", "copied"), [("numpy", True), ("data", True), ("nothing", False)])
def test_a_write_past_the_version_counters_is_seen_in_host_memory(by: str, copied: bool) -> None:
    step = Step(_PastTheCounters(by), SGD(learning_rate=0.1), techniques=[find("sam")()])
    rows = torch.ones(8, 2)
    rows[0] = torch.nan  # which is the same as NaN
    step((rows, torch.arange(8) % 3))
    assert step.inputs.copied is copied


def test_a_run_says_once_that_inputs_are_copied(tmp_path: Path) -> None:
    for in_place in (True, False):
        training = make_training(tmp_path / str(in_place), model=Centring(in_place))
        finish(training)
        warnings_of_run = [each for each in events(training, "warning") if "in place" in each["message"]]
        assert len(warnings_of_run) == in_place
