"""Resume elsewhere: a run goes on with any number of ranks, strategy and micro-batch as it would have gone on where it began."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from snugfit.core.batch import Batch
from snugfit.core.job import Plan
from snugfit.core.technique import Technique
from snugfit.kit.sharded_tensors import whole
from snugfit.run.training.loop import Training
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.clip_norm import ClipNorm
from snugfit.techniques.learning.cosine import Cosine
from snugfit.techniques.learning.ema import EMA
from tests.laws import problems
from tests.laws.problems import relative_error
from tests.ranks.law import STRATEGIES, across, allowed
from tests.ranks.pool import Ranks
from tests.unit.run.training.runs import events, finish, make_training, seen, stop_at

ROWS, WINDOW, WINDOWS, STOP = 19, 7, 6, 3
USUAL = (AdamW(learning_rate=0.01), Cosine(warmup=1), ClipNorm(max_norm=0.05), EMA(decay=0.8))


def usual(techniques: Sequence[Technique]) -> tuple[Technique, ...]:
    """The techniques with an optimizer; with more, where none is given."""
    if not techniques:
        return USUAL
    given = tuple(techniques)
    return given if any("optimizer" in each.card.seams for each in given) else (USUAL[0], *given)


def part(
    folder: Path,
    techniques: tuple[Technique, ...],
    strategy: str,
    micro_batch: int | None = None,
    stop: int | None = None,
) -> dict[str, Any]:
    """A run of six windows, begun or gone on with, up to a window or its end: what it comes to, on this rank."""
    training = begun_or_gone_on_with(folder, techniques, strategy, micro_batch)
    if stop is None:
        finish(training)
    else:
        stop_at(training, stop)
    return {
        "ids": seen(training),
        "weights": problems.weights(training.step),
        "evaluated": problems.evaluated_weights(training.step),
        "loss": training.last_metrics["loss"],
        "losses": [event["metrics"]["loss"] for event in events(training, "update")],
    }


def begun_or_gone_on_with(
    folder: Path, techniques: tuple[Technique, ...], strategy: str, micro_batch: int | None = None
) -> Training:
    problem = problems.main(techniques)
    (window,) = map(Batch.of, problem.windows(rows=[ROWS]))
    goes_on = (folder / "checkpoints").exists()
    training = make_training(
        folder,
        model=problem.model(seed=2 if goes_on else 1),  # what is loaded counts
        train=list(range(ROWS)),
        validation=list(range(5)),
        collate=lambda rows: window.select(rows).data,
        techniques=usual(techniques),
        loss=problem.loss,
        plan=Plan(micro_batch=micro_batch),
        global_batch=WINDOW,
        evaluate_every=2,
        strategy=STRATEGIES[strategy](),
    )
    if goes_on:
        training.restore()
    return training


class Place:
    """Where a part of a run is made: so many ranks of this kind."""

    def __init__(self, strategy: str, ranks: Ranks | None) -> None:
        self.strategy, self.ranks = strategy, ranks

    def run(self, folder: Path, techniques: tuple[Technique, ...], **how: Any) -> dict[str, Any]:
        """The part there; its windows' ids are those of all ranks."""
        if self.ranks is None:
            return part(folder, techniques, self.strategy, **how)
        first, *others = self.ranks.run(_part, folder, techniques, self.strategy, how)
        for other in others:
            assert other["losses"] == first["losses"]
            first["ids"] = [one + more for one, more in zip(first["ids"], other["ids"], strict=True)]
        return first


def _part(
    folder: Path, techniques: tuple[Technique, ...], strategy: str, how: dict[str, Any]
) -> dict[str, Any]:
    return part(folder, techniques, strategy, **how)


def assert_ends_alike(
    found: dict[str, Any], before: dict[str, Any], whole: dict[str, Any], tolerance: float, floor: float
) -> None:
    assert [sorted(window) for window in before["ids"] + found["ids"]] == [
        sorted(window) for window in whole["ids"]
    ]
    for kind in ("weights", "evaluated"):
        error = relative_error(found[kind], whole[kind], floor=floor)
        assert error <= tolerance, f"{kind} are {error:.2g} away"
    assert found["losses"] == pytest.approx(whole["losses"], rel=tolerance)
    assert found["loss"] == pytest.approx(whole["loss"], rel=tolerance)


def agree(
    tmp_path: Path, techniques: tuple[Technique, ...], first: Place, then: Place, micro_batch: int | None
) -> None:
    problem = across(problems.main, techniques)
    whole = part(tmp_path / "whole", techniques, "alone")
    before = first.run(tmp_path / "elsewhere", techniques, stop=STOP)
    found = then.run(tmp_path / "elsewhere", techniques, micro_batch=micro_batch)
    if problems.couples(
        techniques
    ):  # scored in micro-batches, as its loss does not say that it compares rows
        whole["loss"] = found["loss"]
    assert_ends_alike(found, before, whole, problem.tolerance, problem.floor)


MOVES = [
    ("alone", "ddp"),
    ("ddp", "alone"),
    ("alone", "fsdp"),
    ("fsdp", "alone"),
    ("ddp", "fsdp"),
    ("fsdp", "ddp"),
    ("fsdp-offload", "fsdp-zero2"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), MOVES)
def test_a_run_ends_the_same_wherever_it_goes_on(two: Ranks, tmp_path: Path, first: str, then: str) -> None:
    places = [Place(name, None if name == "alone" else two) for name in (first, then)]
    agree(tmp_path, (), *places, micro_batch=2)


def in_one_place(tmp_path: Path, techniques: tuple[Technique, ...], place: Place) -> None:
    """What was stopped and goes on in the same place gives the same bits."""
    whole = place.run(tmp_path / "whole", techniques)
    before = place.run(tmp_path / "stopped", techniques, stop=STOP)
    found = place.run(tmp_path / "stopped", techniques)
    assert before["ids"] + found["ids"] == whole["ids"]
    assert found["losses"] == whole["losses"]
    for kind in ("weights", "evaluated"):
        for name, tensor in whole[kind].items():
            assert torch.equal(found[kind][name], tensor), f"{kind}: {name}"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_run_that_goes_on_where_it_was_is_bit_for_bit_the_uninterrupted_one(
    two: Ranks, tmp_path: Path, strategy: str
) -> None:
    in_one_place(tmp_path, (), Place(strategy, two))


OTHERWISE = {
    "adamw_4bit": "it rounds a shard's moments in blocks of their own, which is another update",
    "adamw_8bit": "its state in blocks is refused where a shard does not hold whole ones",
}
SHARDED = [
    each
    for each in problems.singles()
    if each and allowed(each, "fsdp") and each[0].card.name not in OTHERWISE
]


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [("fsdp", "alone"), ("alone", "fsdp"), ("fsdp", "fsdp")])
@pytest.mark.parametrize("techniques", SHARDED, ids=problems.name_of)
def test_the_state_of_every_technique_moves_between_shards_and_one_device_and_other_shards(
    two: Ranks, tmp_path: Path, techniques: tuple[Technique, ...], first: str, then: str
) -> None:
    places = [Place(name, None if name == "alone" else two) for name in (first, then)]
    agree(tmp_path, techniques, *places, micro_batch=None)


def loaded_masters(folder: Path, techniques: tuple[Technique, ...], strategy: str) -> list[torch.Tensor]:
    """The masters in float32 that a run has once its newest checkpoint is loaded, whole on each rank."""
    optimizer: Any = begun_or_gone_on_with(folder, techniques, strategy).step.optimizer
    return [whole(own["master"]) for own in optimizer.own.values() if "master" in own]


@pytest.mark.slow
def test_masters_saved_by_ranks_are_loaded_alone_as_on_those_ranks(two: Ranks, tmp_path: Path) -> None:
    techniques = problems.find_examples("master_weights")
    Place("fsdp", two).run(tmp_path / "run", techniques, stop=STOP)
    shards, _ = two.run(loaded_masters, tmp_path / "run", techniques, "fsdp")
    alone = loaded_masters(tmp_path / "run", techniques, "alone")
    assert shards and len(shards) == len(alone)
    assert any(not torch.equal(each, each.bfloat16().float()) for each in alone), (
        "masters say more than weights"
    )
    assert all(map(torch.equal, alone, shards))


@pytest.mark.slow
@pytest.mark.parametrize("first", ["alone", "fsdp"])
def test_moments_of_rows_and_columns_go_on_in_shards(two: Ranks, tmp_path: Path, first: str) -> None:
    places = [Place(name, None if name == "alone" else two) for name in (first, "fsdp")]
    agree(tmp_path, problems.find_examples("adafactor"), *places, micro_batch=2)


@pytest.mark.slow
def test_moments_in_four_bits_go_on_in_the_shards_that_they_were_saved_by(two: Ranks, tmp_path: Path) -> None:
    in_one_place(tmp_path, problems.find_examples("adamw_4bit"), Place("fsdp", two))


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [("ddp", "ddp"), ("fsdp", "fsdp"), ("fsdp", "fsdp-hybrid")])
def test_a_run_of_two_devices_goes_on_with_four(
    two: Ranks, four: Ranks, tmp_path: Path, first: str, then: str
) -> None:
    agree(tmp_path, (), Place(first, two), Place(then, four), micro_batch=None)
