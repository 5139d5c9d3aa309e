"""Runs, recipes and plans whose windows differ in size: what they say, what a resume compares, what is planned and measured."""

from __future__ import annotations

import hashlib
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import snugfit as sf
from snugfit.cli.plan import _with_command
from snugfit.core.batch import Batch
from snugfit.core.windows import Sizes
from snugfit.data import order
from snugfit.display.event_lines import header_lines
from snugfit.errors import RunFolderError, SettingError
from snugfit.planner.target import Target
from snugfit.recipe import Recipe, load_recipe
from snugfit.run.plans.recipe_plan import export_plan, plan_recipe
from snugfit.system.memory import memory_bytes
from snugfit.tools.setup import module_setup
from snugfit.tracking.spool import read_events
from tests.unit.run.plans.test_plan_assumed import Here, add_tokenizer, folder, planned  # noqa: F401 - a fixture
from tests.unit.run.test_from_python import train
from tests.unit.run.training.runs import points, small_model


def begun(result: sf.RunResult) -> dict[str, Any]:
    events = read_events(Path(str(result.run_dir)) / "events.jsonl")
    return next(event for event in events if event["event"] == "run")


def test_a_run_says_how_its_windows_grow(tmp_path: Path) -> None:
    result = train(start_batch=2, batch_warmup=6, output=tmp_path)  # 40 rows, 2 epochs, up to 8
    run = begun(result)
    assert run["window"] == "2 → 8 examples over 6 updates"
    assert (run["total_updates"], "updates_per_epoch" in run) == (result.updates, False)
    page = (Path(str(result.run_dir)) / "report.html").read_text(encoding="utf-8")
    assert "2 → 8" in page and "examples over 6 updates" in page
    assert result.updates == 2 + 2 + 2 + 2 + 5  # 2, 2, 4, 4, 6, 6, 8, 8 and 5 windows of 8
    (line,) = [line for line in header_lines(run) if line.startswith("  plan")]
    assert line.startswith("  plan    window 2 → 8 examples over 6 updates, fp32, cpu, 13 updates")


def test_sizes_by_epoch_are_said_with_their_micro_batch(tmp_path: Path) -> None:
    run = begun(train(batch_by_epoch=[2], micro_batch=2, output=tmp_path))
    assert run["window"] == "2, then 8 examples by epoch"
    assert any(
        "window 2, then 8 examples by epoch in micro-batches of 2" in each for each in header_lines(run)
    )


@pytest.mark.parametrize(
    ("before", "after", "difference"),
    [
        ({}, {"start_batch": 4}, "start_batch is new"),
        ({"start_batch": 4}, {"start_batch": 2}, "start_batch 4 then, 2 now"),
        (
            {"start_batch": 4, "batch_warmup": 2},
            {"start_batch": 4, "batch_warmup": 3},
            "batch_warmup 2.0 then, 3.0 now",
        ),
        ({"batch_by_epoch": [4]}, {}, "batch_by_epoch is gone"),
    ],
)
def test_a_resume_with_other_sizes_is_refused(
    before: dict[str, Any], after: dict[str, Any], difference: str, tmp_path: Path
) -> None:
    def stop(_: Any) -> str:
        return "enough"

    run = train(**before, updates=9, on_update=stop, output=tmp_path).run_dir
    with pytest.raises(
        RunFolderError, match=rf"^resume: not what it was when this run began\. window: {difference}"
    ):
        train(**after, updates=9, on_update=stop, resume=run, output=tmp_path)


def as_before_windows_differed(run: str) -> None:
    """Write the checkpoints of a run as they were when all windows were of one size: nothing in them says what size."""
    for manifest in Path(run).glob("checkpoints/*/manifest.json"):
        part = manifest.parent / "run.json"
        whole = part.read_text(encoding="utf-8")
        without = re.sub(r'\["window",\s*\{"dict":\s*\[\]\}\],\s*', "", whole)
        assert without != whole
        part.write_text(without, encoding="utf-8")
        listed = json.loads(manifest.read_text(encoding="utf-8"))
        listed["sha256"][part.name] = hashlib.sha256(part.read_bytes()).hexdigest()
        manifest.write_text(json.dumps(listed), encoding="utf-8")


def test_an_older_run_goes_on_with_its_windows_and_with_no_others(tmp_path: Path) -> None:
    run = train(updates=9, on_update=lambda _: "enough", output=tmp_path).run_dir
    as_before_windows_differed(str(run))
    with pytest.raises(RunFolderError, match=r"^resume: not what it was .* window: start_batch is new"):
        train(start_batch=4, updates=9, resume=run, output=tmp_path)
    assert train(updates=9, resume=run, output=tmp_path).updates == 9


def test_a_run_cuts_its_epochs_once_before_its_first_update() -> None:
    order._cuts.cache_clear()
    train(start_batch=2, batch_warmup=0.5, epochs=3, output=None)
    assert order._cuts.cache_info().misses == 1


class Lengths(list[Any]):
    """Points that say how many tokens each of them has."""

    lengths: tuple[int, ...]


def test_a_resume_is_refused_where_windows_in_tokens_are_cut_elsewhere(tmp_path: Path) -> None:
    data = Lengths(points(40))
    data.lengths = tuple(range(1, 41))
    settings: dict[str, Any] = {"batch_tokens": 60, "updates": 9, "output": tmp_path}
    run = train(data=data, **settings, on_update=lambda _: "enough").run_dir
    data.lengths = data.lengths[::-1]
    with pytest.raises(RunFolderError, match=r"^resume: not what it was when this run began\. tokens: "):
        train(data=data, **settings, resume=run)


def test_batch_norm_is_refused_a_first_window_of_one_example(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(SettingError, match=r"^global_batch: a window of 1 of the 40 examples"):
        train(model, start_batch=1, batch_warmup=3, output=tmp_path)


def test_tools_measure_windows_of_the_last_size() -> None:
    setup = module_setup(small_model(), points(40), global_batch=8, start_batch=2, epochs=2)
    assert [window.rows for window in setup.loader().windows(0, 2)] == [8, 8]
    assert setup.windows == 11  # of which the first is of 2, and the fifth of 6


@pytest.mark.slow
def test_a_rehearsal_measures_windows_of_the_last_size(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def forward(model: nn.Module, batch: Batch) -> Tensor:
        now[0] += len(batch[0])  # a second for each row
        outputs: Tensor = model(batch[0])
        return outputs

    result = train(
        forward=forward, start_batch=2, batch_warmup=3, epochs=30, time=900, display=None, output=tmp_path
    )
    events = read_events(Path(str(result.run_dir)) / "events.jsonl")
    (decided,) = [event for event in events if event["event"] == "time"]
    assert decided["costs"]["update"] == 8.0
    assert begun(result)["window"] == "2 → 8 examples over 3 updates"
    assert result.status == "finished" and result.updates < 151


def recipe(folder: Path, *changes: str) -> Recipe:  # noqa: F811
    return load_recipe(folder / "recipe.yaml", changes)


def test_tokens_are_in_place_of_examples_in_a_recipe(folder: Path) -> None:  # noqa: F811
    path = folder / "recipe.yaml"
    with pytest.raises(SettingError, match="one of global_batch and batch_tokens says .* found both"):
        recipe(folder, "train.batch_tokens=128")
    path.write_text(path.read_text().replace("global_batch: 4", "batch_tokens: 128"))
    made = recipe(folder)
    assert (made.train.global_batch, made.train.batch_tokens, made.evaluate.batch) == (None, 128, 32)
    (folder / "again.yaml").write_text(made.to_yaml())
    again = load_recipe(folder / "again.yaml")
    assert (again.train, again.hash()) == (made.train, made.hash())


def test_sizes_that_are_not_given_are_no_part_of_what_is_learned(folder: Path) -> None:  # noqa: F811
    """Runs of before these settings go on, as theirs do not have them."""
    assert set(recipe(folder).learned()["train"]) == {"epochs", "updates", "global_batch", "seed"}
    grown = recipe(folder, "train.start_batch=2")
    assert grown.learned()["train"]["start_batch"] == 2
    assert grown.hash() != recipe(folder).hash() != recipe(folder, "train.batch_by_epoch=[2]").hash()


@pytest.mark.slow
def test_a_plan_is_for_the_largest_window_and_its_run_for_the_mean_one(folder: Path) -> None:  # noqa: F811
    add_tokenizer(folder)
    (folder / "new.txt").write_text("w3 " * (32 * 40))
    plain = planned(folder, "schedule=null", "train.updates=10")
    grown = planned(
        folder, "schedule=null", "train.updates=10", "train.start_batch=1", "train.batch_warmup=6"
    )
    assert grown.prediction.peak_bytes == plain.prediction.peak_bytes
    assert grown.prediction.seconds_per_update == pytest.approx(plain.prediction.seconds_per_update)
    assert grown.about["windows"] == "1 → 4 examples over 6 updates, time of an update for the largest"
    # 1, 1, 2, 2, 3, 3, 4, 4, 4, 4 examples
    assert grown.prediction.seconds_total == pytest.approx(28 * grown.prediction.seconds_per_update / 4)


def test_a_plan_of_windows_in_tokens_knows_their_number(folder: Path) -> None:  # noqa: F811
    add_tokenizer(folder)
    (folder / "new.txt").write_text("w3 " * (32 * 40))
    made = planned(folder, "schedule=null", "train.global_batch=null", "train.batch_tokens=100")
    assert made.about["windows"].startswith("100 tokens, ")
    assert made.about["window"] == 3  # of 32 tokens each
    assert made.about["total_updates"] == 2 * 12  # 36 blocks to train on, in two epochs


def test_a_plan_of_tokens_without_data_has_as_many_examples_as_fit(folder: Path) -> None:  # noqa: F811
    made = planned(folder, "schedule=null", "train.global_batch=null", "train.batch_tokens=100")
    assert (made.about["window"], made.about["total_updates"]) == (3, None)


@pytest.mark.parametrize(
    "changes", [["train.start_batch=2"], ["train.global_batch=null", "train.batch_tokens=100"]]
)
def test_windows_that_differ_in_size_are_not_exported(folder: Path, changes: list[str]) -> None:  # noqa: F811
    changes = ["schedule=null", "train.updates=10", *changes]
    with pytest.raises(SettingError, match=r"^train\.(start_batch|batch_tokens): cannot be exported"):
        export_plan(recipe(folder, *changes), planned(folder, *changes), "hf")


@pytest.mark.slow
def test_the_largest_batch_is_looked_for_without_growth(folder: Path) -> None:  # noqa: F811
    memory = 2 * memory_bytes(torch.device("cpu"))  # this process has the libraries of all tests before it
    target = Target(device="cpu", memory=memory, search=False, largest="batch")
    asked = recipe(folder, "schedule=null", "train.updates=10", "train.start_batch=2")
    answer = plan_recipe(asked, target, Here())  # type: ignore[arg-type]
    assert answer.largest is not None and answer.largest.value > 4
    command = _with_command(answer, "recipe.yaml", [], 1, [], sizes_removed=asked.train.sizes_removed).command
    changes = command.split()[3:]
    assert recipe(folder, *changes).train.sizes == Sizes(answer.largest.value)
