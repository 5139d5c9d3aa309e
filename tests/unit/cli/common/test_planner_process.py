"""The planner's process is started as early as it is known that it will be asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from snugfit.cli.common.planner_process import PlannerProcess
from snugfit.planner import worker
from snugfit.recipe import Recipe, load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.plans.plan_key import plan_key, plans_folder

AT_THE_START = """
import os, sys
from snugfit.cli import main
from snugfit.planner.worker import Worker

def started(worker, *_, **__):
    os.write(1, repr([name for name in ("torch", "numpy", "transformers") if name in sys.modules]).encode())
    os._exit(0)

Worker.__init__ = started
main(["train", "rows.yaml"])
"""


class FakeWorker:
    """What is asked of the planner's process."""

    did: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.did.append("started")

    def load(self, *modules: str) -> None:
        self.did.append("loads")

    def close(self) -> None:
        self.did.append("closed")


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(worker, "Worker", FakeWorker)
    monkeypatch.setattr(FakeWorker, "did", [])
    (tmp_path / "rows.csv").write_text("x,label\n1,a\n2,b\n")
    (tmp_path / "rows.yaml").write_text(
        "task: tabular-classification\nmodel: tabm\ndata: {train: rows.csv}\n"
    )
    return load_recipe(tmp_path / "rows.yaml")


def keep_plan(recipe: Recipe, seconds_after: float) -> None:
    """Keep a plan of a recipe, so long after its file was written."""
    plans_folder().mkdir(parents=True)
    (plans_folder() / f"{plan_key(recipe)}-0.json").write_text("{}")
    written = (recipe.folder / "rows.yaml").stat().st_mtime
    os.utime(plans_folder(), (written, written + seconds_after))


def steps(recipe: Recipe, options: RunOptions) -> list[list[str]]:
    """What the process has done when the recipe's rows were looked at, when it was loaded, and at the end."""
    told = []
    with PlannerProcess(options, recipe.folder / "rows.yaml") as planner:
        planner.begin()
        told.append(list(FakeWorker.did))
        assert (planner.of(recipe) is None) == ("loads" not in FakeWorker.did)
        told.append(list(FakeWorker.did))
    return [*told, FakeWorker.did]


def test_it_starts_before_the_recipe_is_known_where_no_plan_was_kept_since_that_was_written(
    recipe: Recipe,
) -> None:
    assert steps(recipe, RunOptions(plan=True)) == [
        ["started"],
        ["started", "loads"],
        ["started", "loads", "closed"],
    ]


@pytest.mark.parametrize(("seconds_after", "early"), [(5.0, []), (-5.0, ["started"])])
def test_it_does_not_stay_where_a_plan_is_kept(
    recipe: Recipe, seconds_after: float, early: list[str]
) -> None:
    keep_plan(recipe, seconds_after)
    ended = [*early, "closed"] if early else []
    assert steps(recipe, RunOptions(plan=True)) == [early, ended, ended]


def test_a_kept_plan_of_another_recipe_only_makes_it_start_later(recipe: Recipe) -> None:
    keep_plan(recipe, 5.0)
    (plans_folder() / f"{plan_key(recipe)}-0.json").rename(plans_folder() / "other-0.json")
    os.utime(plans_folder(), (2e9, 2e9))
    assert steps(recipe, RunOptions(plan=True))[:2] == [[], ["started", "loads"]]


def test_a_recipe_whose_file_has_gone_since_it_was_read_only_makes_it_start_later(recipe: Recipe) -> None:
    (recipe.folder / "rows.yaml").unlink()
    assert steps(recipe, RunOptions(plan=True))[:2] == [[], ["started", "loads"]]


def test_it_is_not_started_for_a_run_without_a_plan(recipe: Recipe) -> None:
    assert steps(recipe, RunOptions(plan=False)) == [[], [], []]
    assert steps(recipe, RunOptions(plan=True, fast_dev_run=True)) == [[], [], []]


def test_a_run_starts_it_before_torch_is_imported(recipe: Recipe) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_START],
        cwd=recipe.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]", done.stderr
