"""What ranks find out about a model on their first window: they agree, and none waits for another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from snugfit.core.job import Plan
from snugfit.errors import SettingError
from tests.ranks.law import STRATEGIES
from tests.ranks.pool import Ranks
from tests.unit.run.training.runs import events, finish, make_training, points
from tests.unit.step.model_checks.test_padding import LENGTHS, masked, mean_of_all, reader, window
from tests.unit.step.model_checks.test_row_coupling import contrastive


def coupled(folder: Path, strategy: str, loss: Any) -> tuple[str, int, int]:
    training = make_training(
        folder,
        loss=loss,
        plan=Plan(devices=2, strategy=strategy),
        train=points(16),
        epochs=None,
        updates=60,
        global_batch=8,
        strategy=STRATEGIES[strategy](),
    )
    try:
        finish(training)
    except SettingError as error:
        return str(error), training.step.progress.updates, 0
    rows = events(training, "rows") if dist.get_rank() == 0 else []
    return "", training.step.progress.updates, len(rows)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_refuse_a_loss_that_compares_rows_and_say_once_that_others_do_not(
    two: Ranks, tmp_path: Path, strategy: str
) -> None:
    first, second = two.run(coupled, tmp_path / "coupled", strategy, contrastive)
    assert first == second and first[1] == 0
    assert "ranks would change what is learned" in first[0] and "on one device" in first[0]
    assert two.run(coupled, tmp_path / "plain", strategy, "cross_entropy") == [("", 60, 1), ("", 60, 0)]


def decided(folder: Path, strategy: str, mix: Any) -> tuple[bool | None, str]:
    rows = [{name: value[row] for name, value in window(mix).items()} for row in range(len(LENGTHS))]
    training = make_training(
        folder,
        model=reader(mix),
        train=rows,
        plan=Plan(micro_batch=2, devices=2, strategy=strategy),
        global_batch=len(rows),
        strategy=STRATEGIES[strategy](),
    )
    finish(training)
    return training.step.padding.cut, training.step.padding.message


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize(("mix", "is_cut"), [(masked, True), (mean_of_all, False)])
def test_ranks_agree_whether_padding_is_cut(
    two: Ranks, tmp_path: Path, strategy: str, mix: Any, is_cut: bool
) -> None:
    first, second = two.run(decided, tmp_path, strategy, mix)
    assert first == second and first[0] is is_cut
