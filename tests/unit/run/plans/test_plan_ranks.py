"""What is planned for several devices is what they run: the way to share, its name, and their parts of a CPU's memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from snugfit.core.job import STRATEGY_NAMES, Plan
from snugfit.errors import SettingError
from snugfit.planner import target as targets
from snugfit.planner.answers.answer import Answer, Choice
from snugfit.planner.target import Target, machine_of, on_this_machine
from snugfit.planner.trace.fake_ranks import fake_ranks
from snugfit.recipe import Recipe, load_recipe
from snugfit.recipe.plan_choices import with_choice
from snugfit.run.call_options import RunOptions
from snugfit.run.plans import recipe_plan
from snugfit.run.plans.recipe_plan import export_plan, plan_recipe
from snugfit.strategies import registry
from snugfit.strategies.registry import STRATEGIES, nodes_and_devices
from snugfit.system.processes import World
from tests.unit.run.plans.test_plan_assumed import Here


def recipe(folder: Path, **plan: Any) -> Recipe:
    settings = {
        "name": "points",
        "task": "python",
        "model": "tests.ranks.faulty:Faulty",
        "data": {"train": "tests.ranks.faulty:make_points", "validation": 0.2},
        "train": {"updates": 4, "global_batch": 8},
        "optimizer": {"adamw": {"learning_rate": 0.01}},
        "plan": {"device": "cpu", "devices": 2, **plan},
        "track": {"mlflow": False},
        "output": str(folder / "runs"),
    }
    (folder / "points.yaml").write_text(yaml.safe_dump(settings))
    return load_recipe(folder / "points.yaml")


def planned(found: Recipe, **target: Any) -> Answer:
    return plan_recipe(found, Target(memory=2**34, devices=2, **target), Here())  # type: ignore[arg-type]


def test_every_name_of_a_way_to_share_can_be_run() -> None:
    assert tuple(STRATEGIES) == STRATEGY_NAMES


@pytest.mark.parametrize("name", STRATEGY_NAMES)
def test_a_recipe_runs_the_way_to_share_that_its_plan_chose(tmp_path: Path, name: str) -> None:
    choice = Choice(micro_batch=4, numerics="fp32", techniques=(), strategy=name, devices=2)

    assert with_choice(recipe(tmp_path), choice).plan.strategy == name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "fsdp", "fsdp-zero2"])
def test_the_way_to_share_that_a_recipe_names_is_the_one_that_is_planned(tmp_path: Path, name: str) -> None:
    answer = planned(recipe(tmp_path, strategy=name))

    assert (answer.choice.strategy, answer.choice.devices) == (name, 2)
    assert f"{name} is the way to share that was asked for." in answer.rules


@pytest.mark.slow
def test_a_run_on_several_processes_of_a_cpu_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def plan(found: Recipe, target: Target, *_: Any, **__: Any) -> Answer:
        asked.append(target)
        return planned(found, fewer=target.fewer)

    monkeypatch.setattr(recipe_plan, "plan_recipe", plan)
    run, answer, told = recipe_plan.planned(recipe(tmp_path), RunOptions(plan=True))

    assert (asked[0].devices, asked[0].fewer) == (2, False)
    assert answer is not None and answer.choice.devices == 2
    assert (run.plan.strategy, told) == (answer.choice.strategy, [])


def test_weights_are_spread_over_the_devices_of_the_plan_wherever_the_model_was_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    with fake_ranks(2) as mesh:
        monkeypatch.setattr(registry, "mesh_of", lambda *how: asked.append(how) or mesh)
        found = registry.strategy_of(
            Plan(device="cuda:1", strategy="fsdp", devices=2), World(rank=1, size=2, local_rank=1)
        )

    assert asked == [("cuda", (2,))]
    assert found.mesh is mesh


def test_an_unknown_way_to_share_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"found 'fsdp_zero2'\. Did you mean 'fsdp-zero2'\?"):
        recipe(tmp_path, strategy="fsdp_zero2")


def test_a_copy_on_each_node_is_refused_where_there_is_one(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"there is one node\. Take fsdp"):
        planned(recipe(tmp_path, strategy="fsdp-hybrid"))


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ([0, 0], "one device on each node. Take ddp"),
        ([0, 1], "one node. Take fsdp"),
        ([0, 1, 0], "as many processes on each node"),
        ([0, 0, 1, 1], "one after the other"),
    ],
)
def test_nodes_that_cannot_each_have_a_copy_are_refused(places: list[int], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        nodes_and_devices(places)


@pytest.mark.slow
def test_a_way_to_share_that_other_tools_are_not_told_of_is_not_exported(tmp_path: Path) -> None:
    found = recipe(tmp_path)
    answer = planned(found)
    for name in {*STRATEGY_NAMES} - {"ddp", "fsdp", "fsdp-zero2", "fsdp-offload"}:
        choice = replace(answer.choice, strategy=name, devices=2)
        with pytest.raises(SettingError, match=rf"shares the work by {name}, .* Set plan\.strategy=fsdp"):
            export_plan(found, replace(answer, choice=choice), "hf")


@pytest.mark.slow
def test_the_way_to_share_that_a_search_picks_on_two_devices_is_exported(tmp_path: Path) -> None:
    found = recipe(tmp_path)
    answer = planned(found)
    choice = replace(answer.choice, strategy="fsdp-zero2", devices=2, micro_batch=4)
    exported = export_plan(found, replace(answer, choice=choice), "deepspeed")
    assert json.loads(dict(exported.files)["deepspeed.json"])["zero_optimization"]["stage"] == 2


def test_processes_on_a_cpu_have_their_share_of_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "available_bytes", lambda device: 12 * 2**30)

    assert on_this_machine(Target(devices=3), Plan()).memory == 4 * 2**30
    with machine_of(Target(device="cpu")) as alone, machine_of(Target(device="cpu", devices=3)) as shared:
        assert shared.device.memory_bytes == alone.device.memory_bytes // 3


def test_processes_on_a_cpu_have_their_share_of_its_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where no calibration is
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(targets, "threads_of_each", lambda processes: 6 // processes)
    before = torch.get_num_threads()
    with (
        machine_of(Target(device="cpu", devices=6)) as of_six,
        machine_of(Target(device="cpu", devices=2)) as of_two,
    ):
        assert of_two.device.flops["float32"] == pytest.approx(3 * of_six.device.flops["float32"])
    assert torch.get_num_threads() == before
