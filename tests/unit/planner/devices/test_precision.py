"""Precision where nobody names one: by the units of the device, in plans and in runs without a plan alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from snugfit.core.technique import Fidelity
from snugfit.planner.answers.answer import Choice
from snugfit.planner.devices.data_sheets import SHEETS
from snugfit.planner.devices.device import Device
from snugfit.planner.devices.hardware import find_device
from snugfit.planner.devices.precision import usual_level, usual_precision
from snugfit.planner.plan import Request
from snugfit.planner.target import Target
from snugfit.recipe import Recipe, plan_choices
from snugfit.recipe.plan_choices import with_choice, with_precision_here, with_usual_precision
from snugfit.recipe.write import numerics_entry
from snugfit.run.plans import planning
from tests.unit.planner.asked import recipe, request_of

T4, RTX4090, CPU = find_device("t4"), find_device("rtx4090"), find_device("cpu")
OLD = replace(T4, capability=(6, 1))


def named(device: Device) -> str | None:
    precision = usual_precision(device)
    return None if precision is None else precision.card.name


def entry_of(found: Recipe) -> str:
    """The name of the precision that a recipe has."""
    entry = numerics_entry(found)
    return str(entry if isinstance(entry, str) else next(iter(entry)))


@pytest.mark.parametrize("name", list(SHEETS))
def test_a_gpu_of_the_catalogue_computes_in_mixed_precision_where_nobody_says(name: str) -> None:
    device = find_device(name)
    assert named(device) == ("bf16" if SHEETS[name].capability >= (8, 0) else "fp16")
    assert usual_level(device) is Fidelity.MIXED


@pytest.mark.parametrize("device", [CPU, replace(CPU, kind="mps"), OLD], ids=["cpu", "mps", "pascal"])
def test_a_device_without_16_bit_units_computes_in_fp32_where_nobody_says(device: Device) -> None:
    assert named(device) is None
    assert usual_level(device) is Fidelity.FULL


@pytest.mark.parametrize(
    ("plan", "said", "device", "level"),
    [
        ({}, None, RTX4090, Fidelity.MIXED),
        ({}, None, CPU, Fidelity.FULL),
        ({"numerics": "fp32"}, None, RTX4090, Fidelity.FULL),
        ({"numerics": "bf16"}, None, RTX4090, Fidelity.FULL),  # the search adds the recipe's own level
        ({}, "full", RTX4090, Fidelity.FULL),
        ({"numerics": "fp32"}, "quantized", RTX4090, Fidelity.QUANTIZED),
    ],
)
def test_the_coarsest_level_of_a_plan_is_what_is_said_else_the_recipes_else_the_devices(
    tmp_path: Path,
    requests: list[Request],
    monkeypatch: pytest.MonkeyPatch,
    plan: dict[str, Any],
    said: str | None,
    device: Device,
    level: Fidelity,
) -> None:
    usual = planning.machine_of
    monkeypatch.setattr(planning, "machine_of", lambda target: _as_if(usual(target), device))
    request_of(recipe(tmp_path, **plan), Target(memory=2**34, host_memory=2**36, fidelity=said), requests)

    assert requests[-1].budget.fidelity is level
    assert requests[-1].keeps_precision is ("numerics" in plan)


class _as_if:
    """A machine with another device."""

    def __init__(self, machine: Any, device: Device) -> None:
        self.machine, self.device = machine, device

    def __enter__(self) -> Any:
        return replace(self.machine.__enter__(), device=self.device)

    def __exit__(self, *error: Any) -> None:
        self.machine.__exit__(*error)


@pytest.mark.parametrize(
    ("target", "planned_in"),
    [(Target(search=False), "bf16"), (Target(), None)],
    ids=["as it stands", "searched"],
)
def test_a_recipe_that_is_planned_as_it_stands_is_planned_in_what_it_runs_in(
    tmp_path: Path,
    requests: list[Request],
    monkeypatch: pytest.MonkeyPatch,
    target: Target,
    planned_in: str | None,
) -> None:
    subjects: list[Any] = []
    usual, make = planning.machine_of, planning.make_plan
    monkeypatch.setattr(planning, "machine_of", lambda target: _as_if(usual(target), RTX4090))
    monkeypatch.setattr(
        planning, "make_plan", lambda subject, *rest: subjects.append(subject) or make(subject, *rest)
    )
    request_of(recipe(tmp_path), replace(target, memory=2**34, host_memory=2**36), requests)

    found = [each.card.name for each in subjects[-1].techniques if each.card.precision]
    assert found == ([] if planned_in is None else [planned_in])


@pytest.mark.parametrize(
    ("plan", "device", "entry"),
    [
        ({}, RTX4090, "bf16"),
        ({}, T4, "fp16"),
        ({}, None, "fp32"),
        ({"numerics": "fp32"}, RTX4090, "fp32"),
        ({"numerics": "tf32"}, T4, "tf32"),
    ],
)
def test_a_run_without_a_plan_takes_what_the_recipe_names_else_what_is_usual_on_its_device(
    tmp_path: Path, plan: dict[str, Any], device: Device | None, entry: str
) -> None:
    found, said = with_usual_precision(recipe(tmp_path, **plan), device)

    assert (entry_of(found), said) == (entry, [])
    assert with_usual_precision(found, T4)[0] == found  # which a resume on another device goes on with


def test_a_run_for_which_the_user_allows_full_precision_alone_is_in_fp32(tmp_path: Path) -> None:
    plain = recipe(tmp_path)
    full = replace(plain, budget=replace(plain.budget, fidelity="full"))

    assert entry_of(with_usual_precision(full, RTX4090)[0]) == "fp32"


def test_where_a_technique_excludes_mixed_precision_the_run_is_in_fp32_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from snugfit.errors import PlanConflict

    def refuse(techniques: Any) -> None:
        raise PlanConflict.from_text("'other' excludes 'bf16'.")

    monkeypatch.setattr(plan_choices, "check", refuse)
    found, said = with_usual_precision(recipe(tmp_path), RTX4090)

    assert entry_of(found) == "fp32"
    assert said == ["plan.numerics: it computes in fp32. 'other' excludes 'bf16'."]


def test_a_run_on_a_gpu_of_this_machine_asks_for_its_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_choices, "find_device", lambda name: "cuda")
    monkeypatch.setattr(plan_choices, "uncalibrated", lambda kind: {"cuda": T4}[kind])

    assert entry_of(with_precision_here(recipe(tmp_path))[0]) == "fp16"


def test_a_plan_writes_the_precision_that_it_chose(tmp_path: Path) -> None:
    plain = recipe(tmp_path)
    optimizer = {plain.optimizer.card.name: {}}
    mixed = Choice(4, "bf16", (optimizer, {"bf16": {}}))
    full = Choice(4, "fp32", (optimizer,))

    assert entry_of(with_choice(plain, mixed)) == "bf16"
    assert entry_of(with_choice(plain, full)) == "fp32"
