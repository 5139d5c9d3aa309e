"""A loss that compares rows without saying so is found before the first update."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.job import Plan
from snugfit.core.losses import InfoNCE
from snugfit.errors import SettingError
from snugfit.step.model_checks.row_coupling import compare_rows, require_uncoupled
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.techniques.learning.sgd import SGD
from tests.unit.run.training.runs import events, finish, make_training, points, small_model

ROWS = 8


def window() -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, 2, generator=source), torch.arange(ROWS) % 3


def contrastive(outputs: Tensor, data: Any) -> Tensor:
    """CLIP's: each row against all others."""
    sides = F.normalize(outputs, dim=1)
    return F.cross_entropy(sides @ sides.T / 0.1, torch.arange(len(outputs)), reduction="none")


def with_auxiliary(outputs: Tensor, data: Any) -> Tensor:
    """Cross-entropy, and the balance of experts as a router has it: of the mean of all rows."""
    share = outputs.softmax(dim=1).mean(dim=0)
    return F.cross_entropy(outputs, data[1], reduction="none") + 1e-2 * 3 * (share * share).sum()


def divided_by_rows(outputs: Tensor, data: Any) -> Tensor:
    return F.cross_entropy(outputs, data[1], reduction="none") / len(outputs)


class Centred(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return rows - rows.mean(dim=0)


def compared(
    loss: Any = "cross_entropy", model: nn.Module | None = None, most: int = ROWS, **settings: Any
) -> Any:
    settings = {"micro_batch": 4, **settings}
    step = Step(
        small_model(dropout=0.5) if model is None else model, SGD(learning_rate=0.1), loss, **settings
    )
    return compare_rows(step, Batch.of(window()), most)


def net(*extra: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), *extra, nn.Dropout(0.5), nn.Linear(8, 3))


@pytest.mark.parametrize("micro_batch", [1, 2, 3, None])
@pytest.mark.parametrize("loss", [contrastive, with_auxiliary, divided_by_rows])
def test_losses_of_other_rows_are_found_at_any_micro_batch(loss: Any, micro_batch: int | None) -> None:
    assert compared(loss, micro_batch=micro_batch).coupled


@pytest.mark.parametrize("micro_batch", [1, 3, None])
@pytest.mark.parametrize("model", [net(), net(nn.BatchNorm1d(8)), net(nn.LayerNorm(8))], ids=str)
def test_rows_by_themselves_are_let_through(model: nn.Module, micro_batch: int | None) -> None:
    found = compared(model=model, micro_batch=micro_batch)
    assert not found.coupled and not found.failed and found.neighbours == 0.0


class _Noise(nn.Module):
    """Noise from a generator of the module's own, which no seed of a run reaches."""

    def __init__(self) -> None:
        super().__init__()
        self._source = torch.Generator().manual_seed(0)

    def forward(self, rows: Tensor) -> Tensor:
        return rows + torch.randn(rows.shape, generator=self._source)


@pytest.mark.parametrize("micro_batch", [1, 4, None])
def test_a_model_that_draws_for_itself_is_not_taken_for_one_that_compares_rows(
    micro_batch: int | None,
) -> None:
    found = compared(model=net(_Noise()), micro_batch=micro_batch)
    assert "another loss in each pass" in found.failed
    require_uncoupled(found, ranks=1)
    assert not compared(contrastive, micro_batch=micro_batch).failed


def test_a_model_that_mixes_rows_is_found() -> None:
    assert compared(model=net(Centred())).coupled


def test_techniques_that_compute_in_few_bits_get_their_rounding() -> None:
    found = compared(techniques=[find("bf16")()])
    assert not found.coupled and found.allowed == (0.1, 0.1)
    assert compared(contrastive, techniques=[find("bf16")()]).coupled


def test_a_loss_that_says_so_is_not_compared() -> None:
    assert compared(InfoNCE(), micro_batch=None) is None


def test_fewer_than_two_rows_are_nothing_to_compare() -> None:
    assert compared(most=1) is None


def test_what_cannot_be_computed_without_dropout_is_left_to_the_training() -> None:
    class Stubborn(nn.Linear):
        def forward(self, rows: Tensor) -> Tensor:
            if not self.training:
                raise RuntimeError("no evaluation")
            return super().forward(rows)

    found = compared(model=Stubborn(2, 3))
    assert "no evaluation" in found.failed and not found.coupled


def test_the_comparison_leaves_no_trace() -> None:
    steps = []
    for compares in (True, False):
        step = Step(net(nn.BatchNorm1d(8)), SGD(learning_rate=0.1, momentum=0.9), micro_batch=4)
        before = torch.get_rng_state()
        if compares:
            assert compare_rows(step, Batch.of(window()), ROWS) is not None
            assert torch.equal(torch.get_rng_state(), before)
        step(window())
        steps.append(step.model.state_dict())
    assert all(torch.equal(steps[0][name], steps[1][name]) for name in steps[1])


def run(folder: Path, loss: Any, micro_batch: int | None, windows: int = 60) -> Any:
    plan = Plan(micro_batch=micro_batch)
    return make_training(folder, loss=loss, plan=plan, train=points(16), updates=windows, global_batch=8)


def test_a_run_in_micro_batches_is_refused_before_its_first_update_with_what_to_do(tmp_path: Path) -> None:
    training = run(tmp_path, contrastive, micro_batch=2)
    before = {name: each.clone() for name, each in training.step.model.state_dict().items()}
    with pytest.raises(
        SettingError, match=r"loss: a row's loss differs .* couples_rows = True .* 'gradient_cache'"
    ):
        finish(training)
    assert not events(training, "update")
    assert all(torch.equal(each, before[name]) for name, each in training.step.model.state_dict().items())


def test_a_run_says_once_that_its_rows_are_by_themselves(tmp_path: Path) -> None:
    training = run(tmp_path, "cross_entropy", micro_batch=2)
    finish(training)
    (event,) = events(training, "rows")
    assert event["coupled"] is False and "do not depend" in event["message"]


def test_the_shortest_run_compares_two_rows(tmp_path: Path) -> None:
    training = run(tmp_path / "plain", "cross_entropy", micro_batch=2, windows=1)
    finish(training)
    (event,) = events(training, "rows")
    assert (event["rows"], event["coupled"]) == (2, False)
    for loss in (contrastive, with_auxiliary, divided_by_rows):
        with pytest.raises(SettingError, match="a row's loss differs"):
            finish(run(tmp_path / loss.__name__, loss, micro_batch=2, windows=1))


@pytest.mark.slow
def test_a_run_that_could_not_compare_says_so_and_what_to_call(tmp_path: Path) -> None:
    training = run(tmp_path, _drawn, micro_batch=2)
    finish(training)
    (event,) = events(training, "rows")
    assert event["coupled"] is None and "could not be seen" in event["message"]
    assert "snugfit certify" in event["message"]


_source = torch.Generator().manual_seed(0)


def _drawn(outputs: Tensor, data: Any) -> Tensor:
    return F.cross_entropy(outputs, data[1], reduction="none") * torch.rand(len(outputs), generator=_source)


def _from_four_rows_on(outputs: Tensor, data: Any) -> Tensor:
    plain = F.cross_entropy(outputs, data[1], reduction="none")
    return plain if len(outputs) < 4 else plain - plain.mean()


def test_rows_of_two_micro_batches_are_compared_so_that_a_loss_of_larger_groups_is_found() -> None:
    assert compared(_from_four_rows_on, micro_batch=2).rows == 4
    assert compared(_from_four_rows_on, micro_batch=2).coupled
    assert not compared(_from_four_rows_on, micro_batch=2, most=2).coupled


def test_where_two_micro_batches_do_not_fit_the_rows_of_one_are_compared() -> None:
    class Small(nn.Linear):
        def forward(self, rows: Tensor) -> Tensor:
            if len(rows) > 2:
                raise torch.OutOfMemoryError("out of memory")
            return super().forward(rows)

    comparison = compared(model=Small(2, 3), micro_batch=2)
    assert (comparison.rows, comparison.failed, comparison.coupled) == (2, "", False)
    assert compared(contrastive, model=Small(2, 3), micro_batch=2).coupled
    assert compared(model=Small(2, 3), micro_batch=4).failed == "memory ran out"


@pytest.mark.slow
def test_whole_windows_of_a_loss_that_compares_rows_are_trained_and_never_split(tmp_path: Path) -> None:
    training = run(tmp_path, contrastive, micro_batch=None)
    finish(training)
    (event,) = events(training, "rows")
    assert event["coupled"] is True and training.step.couples_rows
    assert training.step.progress.updates == 60
