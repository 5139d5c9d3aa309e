"""The micro-batch that ranks find: each tries by itself what fits on its device, and the least is that of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from snugfit.core.job import Job, Plan
from snugfit.errors import OutOfMemory, SettingError, SnugfitError
from snugfit.run.training.assemble import check_settings
from snugfit.run.training.loop import Training
from tests.ranks.law import STRATEGIES
from tests.ranks.pool import Ranks
from tests.unit.run.training.runs import events, finish, make_training
from tests.unit.step.test_micro_batch_sizes import LONG, Capped, padded, texts

ROWS = 9


def run_of(folder: Path, room: tuple[int, int], micro_batch: Any, strategy: str = "ddp") -> Training:
    """Windows of nine texts, five for the first rank, of which a device has room for so many of the longest."""
    return make_training(
        folder,
        model=Capped(room[dist.get_rank()] * LONG),
        train=texts(18, long=13),
        collate=padded,
        plan=Plan(micro_batch=micro_batch, devices=2, strategy=strategy),
        global_batch=ROWS,
        epochs=1.0,
        strategy=STRATEGIES[strategy](),
    )


def fitted(folder: Path, room: tuple[int, int], micro_batch: Any) -> dict[str, Any]:
    training = run_of(folder, room, micro_batch)
    before = [each.clone() for each in training.step.parameters]
    training.fit()
    untouched = all(map(torch.equal, before, training.step.parameters))
    found = training.step.micro_batch
    finish(training)
    weights = [each.tolist() for each in training.step.parameters]
    fit_events = events(training, "fit") if dist.get_rank() == 0 else []
    return {"found": found, "untouched": untouched, "weights": weights, "fit_events": fit_events}


@pytest.mark.slow
@pytest.mark.parametrize(("room", "expected"), [((9, 9), 5), ((9, 2), 2), ((4, 9), 4)])
def test_ranks_take_what_fits_on_each_of_them_and_train_as_with_that_number(
    two: Ranks, tmp_path: Path, room: tuple[int, int], expected: int
) -> None:
    found = two.run(fitted, tmp_path / "auto", room, "auto")
    given = two.run(fitted, tmp_path / "given", room, expected)

    assert [each["found"] for each in found] == [expected, expected]
    assert all(each["untouched"] for each in found)
    assert [each["weights"] for each in found] == [each["weights"] for each in given]


@pytest.mark.slow
def test_what_is_told_says_that_another_device_has_less_room(two: Ranks, tmp_path: Path) -> None:
    (event,) = two.run(fitted, tmp_path, (9, 2), "auto")[0]["fit_events"]
    assert event["message"].startswith("micro-batches of 2, tried on the 5 largest examples: 5: ")
    assert event["message"].endswith("; another device has no room for more")


def refusal(folder: Path, room: tuple[int, int]) -> tuple[type[SnugfitError], str]:
    training = run_of(folder, room, "auto")
    with pytest.raises(SnugfitError) as error:
        training.fit()
    return error.type, str(error.value)


@pytest.mark.slow
def test_a_device_on_which_nothing_fits_ends_all(two: Ranks, tmp_path: Path) -> None:
    (kind, message), (_, echoed) = two.run(refusal, tmp_path, (0, 9))
    assert kind is OutOfMemory and message == echoed
    assert message.startswith("plan.micro_batch: auto found none that fits a window of 5 examples")

    (_, message), _ = two.run(refusal, tmp_path, (9, 0))
    assert "(rank 1): plan.micro_batch: auto found none" in message


def test_where_weights_are_gathered_by_all_it_is_refused() -> None:
    with pytest.raises(SettingError, match=r"by plan\.strategy=fsdp weights are gathered by all together"):
        check_settings(
            Job.of(global_batch=ROWS),
            Plan(micro_batch="auto", devices=2, strategy="fsdp"),
            (),
            {},
            validated=False,
        )
