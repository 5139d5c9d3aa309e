"""Plans that are kept: taken again where nothing changed that a plan depends on, and made anew where something did."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from snugfit.errors import SnugfitWarning
from snugfit.planner.answers.answer import Answer, Choice
from snugfit.planner.choice.channel import EARLY, UNCHECKED
from snugfit.planner.target import Target
from snugfit.recipe import Recipe, load_recipe
from snugfit.recipe.plan_choices import with_choice
from snugfit.run.call_options import RunOptions
from snugfit.run.plans import plan_cache, planning, recipe_plan
from snugfit.run.plans.plan_cache import PLANNED, place_of
from snugfit.run.plans.plan_key import has_plan
from snugfit.run.plans.recipe_plan import plan_recipe
from snugfit.system.rounding import MKL_MODE, fix_sums
from snugfit.techniques import find
from tests.unit.report.fake_plan import qlora_on_a_4090

EIGHT_BIT = Choice(
    2,
    "bf16",
    ({"adamw_8bit": {"learning_rate": 5e-5}}, {"recompute": {}}),
    added=("adamw_8bit", "recompute"),
)
ANSWER = replace(
    qlora_on_a_4090(),
    choice=EIGHT_BIT,
    alternatives=tuple(replace(each, choice=EIGHT_BIT) for each in qlora_on_a_4090().alternatives),
)
GPU = Target(device="rtx4090")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "snugfit" / "plans"


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Answer]:
    """What the planner answers, one after the other; what is left of it was not asked for."""
    answers = [replace(ANSWER, planned_seconds=float(number)) for number in range(9)]
    monkeypatch.setattr(planning, "plan_anew", lambda *asked: answers.pop(0))
    return answers


def recipe(folder: Path, *changes: str) -> Recipe:
    rows = folder / "rows.csv"
    if not rows.exists():
        rows.write_text("text,label\na,0\nb,1\n")
        (folder / "model").mkdir()
        (folder / "model" / "config.json").touch()
    tree = {"task": "text-classification", "model": str(folder / "model"), "data": {"train": str(rows)}}
    (folder / "my.yaml").write_text(yaml.safe_dump(tree))
    return load_recipe(folder / "my.yaml", changes)


def test_a_plan_that_was_made_is_taken_again_whole_and_says_so(tmp_path: Path, planned: list[Answer]) -> None:
    first = plan_recipe(recipe(tmp_path), GPU)
    again = plan_recipe(recipe(tmp_path), GPU)

    assert len(planned) == 8
    assert again.about[PLANNED] == "before (less than a minute ago); --replan plans anew"
    assert again.about == {**first.about, "recipe": "my", PLANNED: again.about[PLANNED]}
    assert replace(again, about=first.about, choice=first.choice, alternatives=first.alternatives) == first
    assert replace(again.choice, techniques=()) == replace(first.choice, techniques=())
    assert {name for each in again.choice.techniques for name in each} == {
        "adamw_8bit",
        "linear",
        "clip_norm",
        "recompute",
    }


class Started:
    """A planner's process that was started before it is known whether it will be asked."""

    def __init__(self) -> None:
        self.running = True

    def close(self) -> None:
        self.running = False


@pytest.mark.usefixtures("planned")
def test_a_process_that_is_not_asked_ends_before_the_run_begins(tmp_path: Path) -> None:
    first, second = Started(), Started()
    for worker in (first, second):  # the second one is not asked: the plan is there
        options: Any = RunOptions(plan=True, worker=worker)  # type: ignore[arg-type]
        answer = recipe_plan.planned(recipe(tmp_path), options)[1]
        assert answer is not None and (PLANNED in answer.about) is (worker is second)
    assert not first.running and not second.running


@pytest.mark.parametrize(
    ("optimizer", "chosen"), [("adamw", "adamw_8bit"), ("adamw", "adamw"), ("adamw_8bit", "adamw_8bit")]
)
def test_a_plan_made_for_another_learning_rate_is_taken_with_the_rate_of_the_recipe(
    tmp_path: Path, planned: list[Answer], optimizer: str, chosen: str
) -> None:
    def at(rate: float) -> Recipe:
        return recipe(tmp_path, f"optimizer={{{optimizer}: {{learning_rate: {rate}, weight_decay: 0.5}}}}")

    choice = replace(
        EIGHT_BIT, techniques=({chosen: {"learning_rate": 1e-3, "weight_decay": 0.5}}, {"recompute": {}})
    )
    planned[:1] = [
        replace(ANSWER, choice=choice, alternatives=(replace(ANSWER.alternatives[0], choice=choice),))
    ]
    plan_recipe(at(1e-3), GPU)
    again = plan_recipe(at(7e-5), GPU)

    assert len(planned) == 8
    for each in (again.choice, again.alternatives[0].choice):
        taken = with_choice(at(7e-5), each).optimizer
        assert taken == find(chosen)(learning_rate=7e-5, weight_decay=0.5)  # type: ignore[call-arg]


def test_a_plan_that_puts_adapters_in_is_taken_with_the_rate_that_they_get_by_the_recipes(
    tmp_path: Path, planned: list[Answer]
) -> None:
    def at(rate: float) -> Recipe:
        return recipe(tmp_path, f"optimizer={{adamw: {{learning_rate: {rate}}}}}")

    choice = replace(EIGHT_BIT, techniques=({"adamw": {"learning_rate": 1e-4}}, {"lora": {"rank": 8}}))
    planned[0] = replace(ANSWER, choice=choice)
    first = plan_recipe(at(1e-5), GPU)
    again = plan_recipe(at(2e-6), GPU)

    assert len(planned) == 8
    assert with_choice(at(2e-6), again.choice).optimizer == find("adamw")(learning_rate=2e-5)  # type: ignore[call-arg]
    said = [next(each for each in answer.why if "learning rate" in each) for answer in (first, again)]
    assert [each.split(":")[0] for each in said] == [
        "The learning rate is 0.0001 in place of 1e-05",
        "The learning rate is 2e-05 in place of 2e-06",
    ]


SAME = (
    "optimizer={adamw: {learning_rate: 0.001}}",
    "optimizer={adamw: {weight_decay: 0.5, betas: [0.8, 0.98]}}",
    "schedule={linear: {warmup: 0.3}}",
    "train.seed=7",
    "name=other",
    "track.experiment=other",
    "output=elsewhere",
)
OTHER = (
    "optimizer={adamw: {weight_decay: 0.0}}",
    "optimizer={adamw: {betas: [0.0, 0.999]}}",
    "optimizer={adamw_8bit: {}}",
    "train.global_batch=16",
    "data.max_length=64",
    "techniques=[recompute]",
    "plan.goal=smallest",
    "plan.numerics=fp32",
    "budget.fidelity=full",
    "track.mlflow=false",
)


@pytest.mark.parametrize(("change", "left"), [*((each, 8) for each in SAME), *((each, 7) for each in OTHER)])
def test_a_change_plans_anew_where_a_plan_depends_on_it_and_only_there(
    tmp_path: Path, planned: list[Answer], change: str, left: int
) -> None:
    plan_recipe(recipe(tmp_path), GPU)
    plan_recipe(recipe(tmp_path, change), GPU)

    assert len(planned) == left


def test_trials_that_differ_in_a_number_of_a_technique_are_planned_once_and_each_has_its_own(
    tmp_path: Path, planned: list[Answer]
) -> None:
    plan_recipe(recipe(tmp_path, "techniques=[{sam: {rho: 0.05}}]"), GPU)
    again = plan_recipe(recipe(tmp_path, "techniques=[{sam: {rho: 0.2}}]"), GPU)
    assert len(planned) == 8
    assert [each["sam"]["rho"] for each in again.choice.techniques if "sam" in each] == [0.2]


def test_a_plan_of_the_first_run_of_a_process_is_taken_for_the_next_which_has_the_mode_of_mkl_that_it_set(
    tmp_path: Path, planned: list[Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(MKL_MODE)
    plan_recipe(recipe(tmp_path), GPU)
    fix_sums()
    plan_recipe(recipe(tmp_path), GPU)
    assert len(planned) == 8
    monkeypatch.setenv(MKL_MODE, "COMPATIBLE")
    plan_recipe(recipe(tmp_path), GPU)
    assert len(planned) == 7


def test_another_target_other_rows_another_model_version_or_allocator_plan_anew(
    tmp_path: Path, planned: list[Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_recipe(recipe(tmp_path), GPU)
    plan_recipe(recipe(tmp_path), Target(device="rtx4090", devices=2))
    (tmp_path / "rows.csv").write_text("text,label\na longer text,0\nb,1\n")
    plan_recipe(recipe(tmp_path), GPU)
    (tmp_path / "model" / "config.json").write_text("{}")
    plan_recipe(recipe(tmp_path), GPU)
    monkeypatch.setattr(plan_cache, "versions", lambda: {"torch": "9.9"})
    plan_recipe(recipe(tmp_path), GPU)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    plan_recipe(recipe(tmp_path), GPU)

    assert len(planned) == 3


def test_a_plan_is_made_anew_where_that_is_wanted_and_kept_in_place_of_the_other(
    tmp_path: Path, planned: list[Answer]
) -> None:
    plan_recipe(recipe(tmp_path), GPU)
    assert plan_recipe(recipe(tmp_path), GPU, anew=True).planned_seconds == 1.0
    assert plan_recipe(recipe(tmp_path), GPU).planned_seconds == 1.0


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"made": 1}', '{"made": 1, "answer": {"fits": "yes"}}', "\x00"]
)
def test_a_file_that_cannot_be_used_is_said_and_the_plan_is_made_and_kept_anew(
    tmp_path: Path, cache: Path, planned: list[Answer], text: str
) -> None:
    plan_recipe(recipe(tmp_path), GPU)
    (path,) = cache.iterdir()
    path.write_text(text)
    with pytest.warns(SnugfitWarning, match=r"kept plan .* planned anew"):
        plan_recipe(recipe(tmp_path), GPU)
    assert PLANNED in plan_recipe(recipe(tmp_path), GPU).about
    assert len(planned) == 7


def test_a_cache_that_cannot_be_written_costs_a_warning_and_not_the_plan(
    tmp_path: Path, cache: Path, planned: list[Answer]
) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder should be")
    with pytest.warns(SnugfitWarning):
        assert plan_recipe(recipe(tmp_path), GPU).fits


@pytest.mark.parametrize(
    "answer",
    [replace(ANSWER, fits=False), *(replace(ANSWER, why=(*ANSWER.why, each)) for each in (EARLY, UNCHECKED))],
)
def test_what_does_not_fit_or_was_stopped_early_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path, answer: Answer
) -> None:
    monkeypatch.setattr(planning, "plan_anew", lambda *asked: answer)
    plan_recipe(recipe(tmp_path), GPU)
    assert not cache.exists()


def test_plans_of_recipes_that_name_code_and_measured_ones_are_not_kept(tmp_path: Path) -> None:
    assert place_of(recipe(tmp_path), replace(GPU, probe=True)) is None
    assert place_of(recipe(tmp_path, "loss=my.losses:focal"), GPU) is None


def test_a_command_knows_before_it_plans_whether_a_plan_is_kept(
    tmp_path: Path, planned: list[Answer]
) -> None:
    assert not has_plan(recipe(tmp_path))
    plan_recipe(recipe(tmp_path), GPU)
    assert has_plan(recipe(tmp_path, "train.seed=7", "name=other"))
    assert not has_plan(recipe(tmp_path, "train.global_batch=16"))
    assert not has_plan(recipe(tmp_path, "loss=my.losses:focal"))


def test_a_process_may_keep_plans_of_recipes_that_name_code_in_a_folder_of_its_own(
    tmp_path: Path, cache: Path, planned: list[Answer]
) -> None:
    for rate in (1e-3, 2e-3, 3e-3):
        changes = ("loss=my.losses:focal", f"optimizer={{adamw: {{learning_rate: {rate}}}}}")
        plan_recipe(recipe(tmp_path, *changes), GPU, own=tmp_path / "own")
    assert len(planned) == 8 and len(list((tmp_path / "own").iterdir())) == 1 and not cache.exists()


@pytest.mark.parametrize(("free", "again"), [(1.0, True), (1.2, True), (1.5, False), (0.01, False)])
def test_on_a_cpu_a_plan_has_to_fit_in_what_is_free_now_and_was_made_with_about_as_much(
    tmp_path: Path, planned: list[Answer], monkeypatch: pytest.MonkeyPatch, free: float, again: bool
) -> None:
    on_a_cpu = replace(ANSWER, device={**ANSWER.device, "kind": "cpu"})
    planned[:] = [on_a_cpu] * 9
    monkeypatch.setattr(plan_cache, "available_bytes", lambda device: round(free * ANSWER.budget_bytes))
    plan_recipe(recipe(tmp_path), Target())
    plan_recipe(recipe(tmp_path), Target())

    assert len(planned) == (8 if again else 7)


def test_only_the_newest_plans_are_kept(
    tmp_path: Path, planned: list[Answer], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_cache, "_MOST", 2)
    for place, size in enumerate((2, 4, 8)):
        plan_recipe(recipe(tmp_path, f"train.global_batch={size}"), GPU)
        for path in cache.iterdir():
            os.utime(path, (time.time(), path.stat().st_mtime - 10 * (3 - place)))
    assert len(list(cache.iterdir())) == 2
    assert PLANNED in plan_recipe(recipe(tmp_path, "train.global_batch=8"), GPU).about
