"""Plans of recipes and of modules made anew: what is to be planned, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import nn

from snugfit.core.batch import Batch
from snugfit.core.job import Job, Plan
from snugfit.core.loss_terms import Loss
from snugfit.core.technique import Fidelity, Stage, Technique
from snugfit.data.loader import Loader
from snugfit.data.order import Order, examples_of_epoch, in_examples, training_order
from snugfit.kit.adapters.adapters import require_peft
from snugfit.kit.losses.default_loss import default_loss
from snugfit.kit.skeleton import skeleton
from snugfit.planner.answers.answer import Answer
from snugfit.planner.choice.adapter_rate import adapter_notes
from snugfit.planner.choice.candidate import Budget, SearchTime, margin_on
from snugfit.planner.choice.cheapest import make_cheapest
from snugfit.planner.choice.goals import WORTH, check_goal
from snugfit.planner.devices.device import Machine
from snugfit.planner.export import weighed
from snugfit.planner.largest import make_largest
from snugfit.planner.plan import Request, make_measured_plan, make_plan
from snugfit.planner.sharing import make_shared_plan
from snugfit.planner.target import Target, cluster_of, host_memory, machine_of, on_this_machine
from snugfit.planner.trace.dry_run import Subject
from snugfit.planner.trace.fake_tensors import BareOptimizer
from snugfit.planner.worker import Watch, Worker, ignore, wait
from snugfit.step.build import Material, describe_model
from snugfit.step.metrics.metric import seen_by
from snugfit.step.step import Forward
from snugfit.system.memory import memory_bytes
from snugfit.tasks import find, import_again
from snugfit.tasks.prepare import lacking, prepare, prepare_assumed
from snugfit.tasks.task import Task

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

_SECONDS = 300.0
"""After which the answer of a search is not waited for any more."""

_LONG = 4
"""Times as long that a plan is waited for that is not searched for, which nobody can bound."""

_OF_A_SEARCH = "Plan without a search (--no-search, search=False), or bound it (--seconds N, seconds=N)."
_WITHOUT_A_SEARCH = (
    "Try again where this machine does less else, or measure on the device itself (--probe, probe=True)."
)

_RESIDENT_AT_MOST = 1.5
"""Times its prediction that a run on a CPU stays within while the C library keeps what is freed: one of MiniLM took 1.31."""

_BRIEF = 20.0
"""Seconds of a run on this machine's CPU beside which a search is not short: what it may find is a tenth, where the recipe's own plan fits."""

_TRACKER_BYTES = 230_000_000
"""Resident bytes of the process in which MLflow follows a run; measured with MLflow 3.17."""


def plan_anew(
    recipe: Recipe,
    job: Job,
    plan: Plan,
    target: Target,
    worker: Worker | None = None,
    watch: Watch = ignore,
    meanwhile: Callable[[], None] = wait,
) -> Answer:
    """Return the plan of a recipe, whatever is kept of earlier ones, without its weights and without its device.

    Args:
        worker: one that was started before; watch: what one that is started now tells how far the search is.
        meanwhile: what this process does while the other one plans.
    Raises:
        UserError: the recipe, its data or its model cannot be used.
        PlannerFailed: the planner died, or took too long.
    """
    check_goal(target.goal, target.price)
    target = on_this_machine(target, plan)
    worker = worker or Worker(not target.probe, watch)
    asked = (recipe, job, plan, target)
    answer: Answer = worker.run(
        _plan_recipe, *asked, **_patience(target), folder=recipe.folder, meanwhile=meanwhile
    )
    return answer


def plan_module(
    model: nn.Module,
    batch: Any,
    job: Job,
    plan: Plan,
    techniques: Sequence[Technique],
    target: Target,
    *,
    examples: int,
    loss: str | Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    forward: Forward | None = None,
    watch: Watch = ignore,
) -> Answer:
    """Return the plan of any module for windows like `batch`; the model itself is not touched, and its weights are not copied.

    Raises:
        As `plan_anew`.
    """
    check_goal(target.goal, target.price)
    # loads its libraries while the model's structure is copied
    worker = Worker(hide_gpu=not target.probe, watch=watch, best_so_far=True)
    try:
        worker.load("snugfit.run.plans.planning")
        named = any(each.card.precision for each in techniques)
        target = replace(on_this_machine(target, plan), keeps_precision=named)
        window = batch if isinstance(batch, Batch) else Batch.of(batch)
        if loss is None:
            loss = default_loss(model)
        material = Material(skeleton(model), range(examples), None, loss, None, forward)
        bare = None if optimizer is None else BareOptimizer.of(optimizer, model)
        asked = (material, window, job, plan, tuple(techniques), bare, target)
        answer: Answer = worker.run(_plan_material, *asked, **_patience(target))
    finally:
        worker.close()
    return answer.with_notes(adapter_notes(techniques, answer.choice.techniques))


class _Patience(TypedDict):
    """The time that an answer is waited for, and what to do where none came."""

    timeout: float
    way_out: str


def _patience(target: Target) -> _Patience:
    """Return the seconds to wait for an answer, with what to do then; on several devices a search may take as long twice.

    Where nothing is searched for nobody can bound it, so it gets as long as several searches.
    """
    if not target.search or target.largest is not None or target.probe:
        return {"timeout": _LONG * _SECONDS, "way_out": _WITHOUT_A_SEARCH}
    searches = len(target.counts()) * (1 + target.frontier * len(Fidelity))
    seconds = searches * (_SECONDS if target.seconds is None else _SECONDS + 2 * target.seconds)
    return {"timeout": seconds, "way_out": _OF_A_SEARCH}


def _plan_recipe(recipe: Recipe, job: Job, plan: Plan, target: Target) -> Answer:
    import_again(recipe.task, recipe.folder)
    with machine_of(target) as machine:
        if not target.search or target.largest is not None or target.probe:  # else the search decides
            from snugfit.recipe.plan_choices import (
                with_usual_precision,  # recipes, which most runs from Python do without
            )

            recipe = with_usual_precision(recipe, machine.device)[0]
        task, assumed = _task(recipe)
        from_files = find(recipe.task).reads_model(recipe.model) and not recipe.from_scratch
        material = task.material
        window = _largest_window(material, job)
        subject = replace(
            _subject(
                material,
                window,
                in_examples(job, window.rows, None if assumed else material.train),
                recipe.all_techniques(),
                None,
            ),
            evaluation=_evaluation(material, job),
            seen=seen_by(job.evaluate.metrics),
            from_files=from_files,
            assumed=assumed,
            mean_window=1.0 if assumed else _mean_window(material.train, job),
        )
        about = {"recipe": recipe.name, "task": recipe.task, "model": recipe.model, "data": _sizes(task)}
        if job.train.sizes_given:
            sizes = training_order(job, material.train).cuts.sizes
            about["windows"] = f"{sizes.words(job.train.unit)}, time of an update for the largest"
        return _planned(subject, machine, plan, target, about, _TRACKER_BYTES if recipe.track.mlflow else 0)


def _plan_material(
    material: Material,
    window: Batch,
    job: Job,
    plan: Plan,
    techniques: tuple[Technique, ...],
    optimizer: BareOptimizer | None,
    target: Target,
) -> Answer:
    with machine_of(target) as machine:
        subject = _subject(material, window, job, techniques, optimizer)
        return _planned(subject, machine, plan, target, {"model": type(material.model).__name__})


def _planned(
    subject: Subject,
    machine: Machine,
    plan: Plan,
    target: Target,
    about: Mapping[str, Any],
    beside_bytes: int = 0,
) -> Answer:
    """Return the plan of a subject on a machine.

    Args:
        beside_bytes: that another process of the run takes of what is free there.
    """
    numbers = target.counts()
    if len(numbers) > 1:
        time = SearchTime(target.seconds)

        def make_on(nodes: int, devices: int) -> Answer:
            seconds = time.part(1 / len(numbers[numbers.index((nodes, devices)) :]))
            one = replace(target, nodes=nodes, devices=devices, fewer=False, seconds=seconds)
            return _planned(subject, machine, plan, one, about, beside_bytes)

        assert target.price is not None
        return make_cheapest(make_on, numbers, target.price, WORTH if target.worth is None else target.worth)
    if any(Stage.ADAPT in each.card.stages for each in subject.techniques):
        require_peft()
        import_module("peft")  # which is loaded when adapters are put in
    # this process has loaded what one that trains loads, but for what follows a run
    host_bytes, notes = host_memory(target, machine)
    machine = replace(machine, baseline=memory_bytes(torch.device("cpu")), notes=(*machine.notes, *notes))
    device_bytes = machine.device.memory_bytes
    # memory that was named is that of the training
    if target.memory is None and machine.device.kind == "cpu":
        device_bytes = max(1, device_bytes - beside_bytes)
    if target.host_memory is None and host_bytes is not None:
        host_bytes = max(1, host_bytes - beside_bytes)
    margin = margin_on(machine.device.kind) if target.margin is None else target.margin
    budget = Budget(device_bytes, host_bytes, target.level(machine.device), margin)
    request = Request(
        replace(plan, device=machine.type),
        budget,
        target.search,
        probe=target.probe,
        keeps_precision=target.keeps_precision,
        brief=_BRIEF if _may_be_brief(target, budget) else 0.0,
        **target.choice(),
    )
    if target.export is not None and target.search:
        may_add = weighed(target.export, "single", 1, machine.device.kind)
        request = replace(request, export=target.export, rungs=may_add)
        machine = replace(machine, notes=(*machine.notes, f"Only what {target.export} has too was weighed."))
    known = {
        "parameters": describe_model(subject.model()),
        "window": subject.window.rows,
        "total_updates": subject.total_updates,
    }
    if target.largest is not None:
        return make_largest(target.largest, subject, machine, request, {**about, **known})
    if target.devices * target.nodes > 1:
        return make_shared_plan(
            subject, machine, request, cluster_of(target, machine), {**about, **known}, target.strategy
        )
    make = make_measured_plan if target.probe else make_plan
    return make(subject, machine, request, {**about, **known})


def _may_be_brief(target: Target, budget: Budget) -> bool:
    """Return whether a run that is soon over need not be searched for: on this machine's CPU, where a plan changes no numbers, and by default."""
    alone_here = target.device is None and target.here is None and target.devices * target.nodes == 1
    return (
        alone_here
        and budget.fidelity is Fidelity.FULL
        and target.goal in (None, "fastest")
        and target.seconds is None
        and target.export is None
        and not target.frontier
    )


def _task(recipe: Recipe) -> tuple[Task, str]:
    """Return what is trained, and what was assumed of its data where there is nothing to look at."""
    missing = lacking(recipe)
    if missing is None:
        task, empty = prepare(recipe, empty=True), find(recipe.task).load_empty
        if empty is not None and task.material.load is not None:  # a teacher is planned without weights too
            task = replace(task, material=replace(task.material, load=partial(empty, recipe)))
        return task, ""
    of_two = " of one of two classes" if find(recipe.task).classes else ""
    assumed = f"every example is taken to have {recipe.data.max_length} tokens{of_two}, as {missing}"
    return prepare_assumed(recipe), assumed


def _subject(
    material: Material,
    window: Batch,
    job: Job,
    techniques: tuple[Technique, ...],
    optimizer: BareOptimizer | None,
) -> Subject:
    empty = skeleton(material.model)
    return Subject(
        lambda: skeleton(empty),
        window,
        job,
        examples_of_epoch(material.train),
        techniques,
        material.loss,
        optimizer,
        material.forward,
        material.load,
    )


def _largest_window(material: Material, job: Job) -> Batch:
    """Return a window of the largest examples, as many as the run's largest window has."""
    order = training_order(job, material.train)
    if order.lengths is None:
        return _worst(material.train, material, job, len(order.largest_window()))
    window, _ = Loader(material.train, order, material.collate).worst_window()
    return window


def _mean_window(data: Any, job: Job) -> float:
    """Return the examples or tokens of the run's mean window, as a part of those of its largest one."""
    if not job.train.sizes_given:
        return 1.0
    order = training_order(job, data)
    largest = order.largest_window()
    rows = order.cuts.examples_after(order.windows) / order.windows
    if order.lengths is None:
        return rows / len(largest)
    mean_length = order.mean_length()
    return min(1.0, rows * mean_length / sum(order.lengths[index] for _, index in largest))


def _worst(data: Any, material: Material, job: Job, rows: int) -> Batch:
    """Return a window of the largest examples."""
    order = Order(len(data), min(rows, len(data)), job.train.seed, shuffle=False)
    window, _ = Loader(data, order, material.collate).worst_window()
    return window


def _evaluation(material: Material, job: Job) -> Batch | None:
    data = material.validation
    if data is None or not len(data):
        return None
    return _worst(data, material, job, job.evaluation_batch)


def _sizes(task: Task) -> dict[str, Any]:
    return {name: size for name, size in task.data.items() if name in ("train", "validation")}


def figures_to_compare(plan: Mapping[str, Any], device: str) -> dict[str, Any] | None:
    """Return the figures of a plan, as a run's folder keeps it, with which the run is compared.

    They are, of each of several devices, the seconds of an update, and the bytes that can be measured beside
    it: resident ones on a CPU, allocated ones on CUDA. None where nothing was predicted.
    """
    if "reserved_bytes" not in plan:
        return None
    measured_by = {"cpu": "reserved_bytes", "cuda": "peak_bytes"}.get(torch.device(device).type)
    peak = {} if measured_by is None else {"peak_bytes": plan[measured_by]}
    return {**peak, "seconds_per_update": plan["seconds_per_update"]}


def is_tight(plan: Mapping[str, Any]) -> bool:
    """Return whether a plan, as a run's folder keeps it, leaves little memory free.

    On a CPU it then matters what the C library keeps of what was freed.
    """
    peak, budget = plan.get("reserved_bytes"), plan.get("budget_bytes")
    return peak is not None and budget is not None and peak * _RESIDENT_AT_MOST > budget
