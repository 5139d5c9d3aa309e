"""A stop that one rank is asked for, such as by a signal to its host: all make it, after the same update."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from snugfit.core.job import Plan
from tests.ranks.law import STRATEGIES
from tests.ranks.pool import Ranks
from tests.unit.run.training.runs import Never, StopAt, make_training


@pytest.mark.parametrize("asked", [0, 1])
def test_all_ranks_stop_after_the_update_that_one_was_asked_in(
    two: Ranks, tmp_path: Path, asked: int
) -> None:
    assert two.run(stopped, tmp_path, asked) == [("stopped", "enough", 2)] * 2
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["update-00000002"]


def stopped(folder: Path, asked: int) -> tuple[str, str | None, int]:
    training = make_training(
        folder, plan=Plan(devices=2, strategy="ddp"), strategy=STRATEGIES["ddp"](), checkpoint_every=5
    )
    stop = StopAt(training, 2) if dist.get_rank() == asked else Never()
    result = training.run(stop)  # type: ignore[arg-type]
    return result.status, result.stop_reason, training.step.progress.windows
