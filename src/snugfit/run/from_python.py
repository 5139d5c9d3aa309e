"""Train from Python: any module, any data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from snugfit.core.batch import Batch
from snugfit.core.entry import as_entry
from snugfit.core.job import Job, MicroBatch, Plan, StopWhen
from snugfit.core.losses import Loss
from snugfit.core.selection import check, listed
from snugfit.core.technique import Family, Technique
from snugfit.data.loader import Collate
from snugfit.errors import SettingError
from snugfit.models.bundle import save_bundle
from snugfit.planner.answers.answer import Answer
from snugfit.planner.choice.goals import SLOWER, WORTH
from snugfit.planner.target import Target
from snugfit.results.run_folder import RunFolder, check_name
from snugfit.run.events import AGAIN, Display, Silent, goes_on, opened
from snugfit.run.planning import plan_module
from snugfit.run.session import (
    RunOptions,
    Tracking,
    describe_run,
    follow,
    python_inputs,
    run_session,
    versions,
)
from snugfit.run.training.result import RunResult
from snugfit.step.build import Material, assemble, check_dataset, check_settings, find_device, hold_out
from snugfit.step.metrics import RowMetric
from snugfit.step.outside_weights import check_outside
from snugfit.step.step import Forward
from snugfit.strategies.registry import named_strategy, shared_folder, strategy_of
from snugfit.strategies.world import check_same, device_of, joined
from snugfit.system.processes import this_world
from snugfit.techniques import find
from snugfit.tracking.cursor import stored_uri
from snugfit.tracking.uri import check_uri, resolve_uri
from snugfit.units import parse_bytes

_TIMEOUT_SECONDS = 1800.0
"""That a rank waits for the others before it gives up; in recipes plan.timeout."""


def train(
    model: nn.Module,
    data: Any,
    *,
    loss: str | Loss = "cross_entropy",
    optimizer: torch.optim.Optimizer | Technique | None = None,
    techniques: Sequence[Technique] = (),
    preset: str | None = None,
    validation: Any = None,
    metrics: Sequence[str] | Mapping[str, str | RowMetric] = (),
    epochs: float | None = 3.0,
    updates: int | None = None,
    global_batch: int = 32,
    micro_batch: MicroBatch = None,
    best: str | None = None,
    evaluate_every: int | None = None,
    evaluate_batch: int | None = None,
    patience: int | None = None,
    min_delta: float = 0.0,
    stop_when: StopWhen | None = None,
    non_finite: str = "skip",
    non_finite_limit: int = 10,
    checkpoint_every: int | None = None,
    checkpoint_keep: int = 2,
    checkpoint_save: str = "sync",
    seed: int = 0,
    device: str = "auto",
    strategy: str = "auto",
    num_workers: int = 0,
    cut_padding: bool = True,
    deterministic: bool = False,
    collate: Collate | None = None,
    forward: Forward | None = None,
    name: str = "run",
    output: str | Path = "runs",
    resume: str | Path | None = None,
    accept_changes: Sequence[str] = (),
    stop_after_seconds: float | None = None,
    track: bool = True,
    track_uri: str | None = None,
    display: Display | None = None,
) -> RunResult:
    """Train any `nn.Module` on a map-style data set; the model is trained in place.

    On return `model` has the last weights, and the adapters of a technique that puts some into it; the best weights,
    averaged or merged where a technique does that, are in `best/`.

    Args:
        data: `len()` and `[index]`, of tuples (inputs, labels) or mappings with `labels`.
        validation: another data set, or the fraction of `data` to hold out.
        metrics: names of built-in metrics, or names with `(outputs, batch) -> one value a row`.
        optimizer: a torch optimizer or a technique; AdamW at its defaults if neither it nor a preset is given.
        preset: optimizer, schedule and techniques that go together, such as "fine_tune"; what is given besides wins.
        epochs, updates: the length of the run; `updates` wins.
        micro_batch: examples of one forward and backward; None takes the window whole, "auto" as much of it as fits.
        best: the metric that picks the best weights; the first metric if not given, else the loss.
        patience: evaluations that may pass without an improvement of more than `min_delta`.
        stop_when: `(evaluations so far) -> the reason to stop, or None`; each evaluation has `update`, `epoch`, `metrics`,
            `weights` and `best`.
        non_finite: what to do with a window whose loss or gradient is not finite: skip it, stop, or roll_back to the newest
            checkpoint and pass over it; `non_finite_limit` such windows in a row end the run.
        checkpoint_keep: checkpoints that are kept, at least 2.
        checkpoint_save: "async" writes each from a copy in host memory while the training goes on; "sync" lets it wait.
        strategy: how processes that were started by torchrun or srun share each update: "ddp" copies the model to each device, which
            "auto" stands for, "fsdp" spreads it over them, and so do "fsdp-zero2", "fsdp-hybrid" and "fsdp-offload" in other ways. All
            call this function alike, and get the same result.
        cut_padding: whether micro-batches may be as wide as their longest text, where the model computes the same without padding.
        deterministic: whether to take operators whose results depend on their inputs alone; an operator that has no such form is an error.
        resume: the folder of a run of the same model, data, code and settings, to go on from its newest checkpoint; a run that was killed
            before its first one starts again there.
        accept_changes: what may differ from the run that is resumed, by the names that its refusal says, such as "data" or "loss".
        track: send the run to MLflow, by default in a database beside the runs.

    Returns:
        How the run ended; `run_dir` has the events, the checkpoints, `best/` and the report.
    Raises:
        UserError: a setting, the data or the folder cannot be used.
        TrainingFailed: the run failed on its own account.
    """
    check_name(name)
    if isinstance(metrics, str):
        metrics = (metrics,)
    metric_map: dict[str, str | RowMetric] = (
        dict(metrics) if isinstance(metrics, Mapping) else {metric: metric for metric in metrics}
    )
    if accept_changes and resume is None:
        raise SettingError("accept_changes: got names, and no run to resume. Give resume, the run's folder.")
    if validation is None and metric_map:
        raise SettingError(f"metrics: {', '.join(metric_map)} need data to be measured on. Give validation.")
    job = Job.of(
        global_batch=global_batch,
        epochs=epochs,
        updates=updates,
        seed=seed,
        metrics=tuple(metric_map),
        best=best or "",
        evaluate_batch=evaluate_batch,
        evaluate_every="epoch" if evaluate_every is None else evaluate_every,
        patience=patience,
        min_delta=min_delta,
        stop_when=stop_when,
        non_finite=non_finite,
        non_finite_limit=non_finite_limit,
        checkpoint_every=checkpoint_every,
        checkpoint_keep=checkpoint_keep,
        checkpoint_save=checkpoint_save,
    )
    all_techniques = listed(optimizer, techniques)
    if preset is not None:
        if isinstance(optimizer, torch.optim.Optimizer):
            raise SettingError(
                "preset: brings an optimizer, and a torch optimizer is given too. Give its schedule and techniques by name."
            )
        from snugfit.recipe.presets import completed  # recipes, which most runs from Python do without

        all_techniques = completed(all_techniques, preset)
    numerics = [each.card.name for each in all_techniques if each.card.family is Family.NUMERICS]
    world = this_world()
    device = find_device(device)
    plan = Plan(
        micro_batch=micro_batch,
        numerics=" ".join(numerics) or "fp32",
        device=device_of(device, world),
        strategy=named_strategy(strategy, world.size),
        devices=world.size,
        num_workers=num_workers,
        cut_padding=cut_padding,
        deterministic=deterministic,
    )
    _complete(optimizer, all_techniques)
    check_settings(job, plan, all_techniques, metric_map, validated=validation is not None)
    check_dataset("data", data)
    check_outside(model, loss, forward)
    held_out = validation
    own = data if isinstance(validation, (int, float)) else validation  # before some rows are held out
    sources = {"train": (type(data).__name__, data), "validation": (type(own).__name__, own)}
    if isinstance(validation, (int, float)):
        data, held_out = hold_out(data, validation, seed)
    elif validation is not None:
        check_dataset("validation", validation)

    def save_best(
        path: Path, model: nn.Module, description: Mapping[str, Any], *, trained: nn.Module
    ) -> None:
        meta = {"task": "python", "model": None, **description}
        save_bundle(path, model, meta, adapters_of=trained)

    identity = _identity(job, len(data), optimizer, all_techniques)
    with ExitStack() as stack:
        stack.enter_context(joined(world, plan.device, _TIMEOUT_SECONDS))
        if world.size > 1:
            shared = {"micro_batch": micro_batch, "strategy": plan.strategy}
            check_same({**identity, **shared, "versions": versions()})
        ranks = strategy_of(plan, world)
        folder = shared_folder(ranks, Path(output), name) if resume is None else RunFolder.open(Path(resume))
        again = resume is not None and not goes_on(folder, ranks)
        events = stack.enter_context(opened(folder, display) if world.leads else nullcontext(Silent()))
        if again:
            events("resume", update=0, window=0)
            events("warning", message=AGAIN)
        training = assemble(
            job,
            plan,
            Material(model, data, held_out, loss, collate, forward),
            optimizer if isinstance(optimizer, torch.optim.Optimizer) else None,
            all_techniques,
            metric_map,
            folder=folder,
            emit=events,
            save_best=save_best,
            identity=identity,
            accept_changes=(accept_changes,) if isinstance(accept_changes, str) else tuple(accept_changes),
            strategy=ranks,
        )
        options = RunOptions(stop_after_seconds=stop_after_seconds)
        if not world.leads:
            return follow(training, options, resume is not None and not again)
        described = {
            "recipe": {
                "evaluate": {"best": job.evaluate.best_metric},
                "techniques": [as_entry(each) for each in all_techniques],
            },
            "data": {"train": len(data), "validation": 0 if held_out is None else len(held_out)},
            "inputs": python_inputs(training, sources),
        }
        header = describe_run(name, folder, training, plan, described)
        tracking = Tracking(_tracker_uri(track_uri, Path(output), folder)) if track else None
        return run_session(
            training,
            events,
            header,
            tracking=tracking,
            options=options,
            resume=resume is not None and not again,
        )


def _complete(optimizer: torch.optim.Optimizer | Technique | None, techniques: list[Technique]) -> None:
    """Put AdamW at its defaults first where nobody gives an optimizer."""
    if optimizer is None and not any("optimizer" in technique.card.seams for technique in techniques):
        techniques.insert(0, find("adamw")())


def _tracker_uri(setting: str | None, output: Path, folder: RunFolder) -> str:
    uri = resolve_uri(setting, output, stored=stored_uri(folder.path))
    check_uri(uri)
    return uri


def _identity(job: Job, examples: int, optimizer: Any, techniques: Sequence[Technique]) -> dict[str, Any]:
    """What decides the updates of a run made in Python, as far as it can be compared."""
    return {
        "examples": examples,
        "global_batch": job.train.global_batch,
        "updates": job.total_windows(examples),
        "seed": job.train.seed,
        "optimizer": type(optimizer).__name__ if isinstance(optimizer, torch.optim.Optimizer) else None,
        "optimizer_settings": _optimizer_settings(optimizer),
        # a run may go on under another placement: the updates are the same
        "techniques": [
            {each.card.name: settings}
            for each in techniques
            if each.card.family is not Family.PLACEMENT
            for settings in as_entry(each).values()
        ],
    }


def _optimizer_settings(optimizer: Any) -> dict[str, Any]:
    """What a torch optimizer was made with, but for how it computes; a checkpoint's would silently count instead of another."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return {}
    how = ("foreach", "fused", "capturable", "differentiable")
    return {name: str(value) for name, value in optimizer.defaults.items() if name not in how}


def plan(
    model: nn.Module,
    batch: Any,
    *,
    loss: str | Loss = "cross_entropy",
    optimizer: torch.optim.Optimizer | Technique | None = None,
    techniques: Sequence[Technique] = (),
    micro_batch: int | None = None,
    updates: int = 1000,
    budget: int | str | None = None,
    host_budget: int | str | None = None,
    fidelity: str | None = None,
    device: str | None = None,
    devices: int = 1,
    nodes: int = 1,
    link: str | None = None,
    network: str | None = None,
    goal: str = "fastest",
    worth: float = WORTH,
    slower: float = SLOWER,
    price: float | None = None,
    seconds: float | None = None,
    search: bool = True,
    probe: bool = False,
    forward: Forward | None = None,
) -> Answer:
    """What training `model` needs, in bytes and seconds, before it runs, and the fastest plan that fits.

    The step runs on tensors without numbers, in a process of its own: the model is not touched.

    Args:
        batch: the examples of one update, the largest there are: what the model takes, or a `Batch`.
        micro_batch: examples of one forward and backward; None lets the plan choose.
        updates: length of the run, for its time and for schedules.
        budget, host_budget: memory of the device and of the host, in bytes or like "24GiB"; what is here by default.
        fidelity: the coarsest precision that the plan may choose: full, mixed, compact, adapters or quantized.
        device: a name of the catalogue, such as "rtx4090"; this machine's by default.
        devices, nodes: how many of them on each node, and how many nodes; the plan says whether and how they share the work.
        link, network: between the devices of a node, such as "nvlink4", and between nodes, such as "infiniband-ndr".
        goal: "fastest", the least time; "finest", the finest precision that fits; "smallest", the least memory within `slower` times
            the fastest; "cheapest", devices times hours times `price`, that of one hour of one device.
        worth: times as fast that a plan below mixed precision has to be to be chosen where something finer fits.
        seconds: that the search may take; by default it is bounded by the predictions that it makes.
        search: False predicts exactly what was asked for.
        probe: measure with few examples on this machine's device, for models that cannot be run without numbers.

    Returns:
        The answer: `fits`, `prediction`, `choice`, `alternatives`, `rejected`, `why`; `as_dict()` has plain values.
    Raises:
        UserError: a setting is impossible, or the model cannot be run without its numbers.
        PlannerFailed: the planner's process died, or took too long.
    """
    window = batch if isinstance(batch, Batch) else Batch.of(batch)
    given = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
    all_techniques = listed(optimizer, techniques)
    _complete(optimizer, all_techniques)
    check(all_techniques)
    job = Job.of(global_batch=window.rows, updates=updates)
    target = Target(
        device=device,
        memory=None if budget is None else parse_bytes(budget, "budget"),
        host_memory=None if host_budget is None else parse_bytes(host_budget, "host_budget"),
        fidelity=fidelity,
        goal=goal,
        worth=worth,
        slower=slower,
        price=price,
        seconds=seconds,
        search=search,
        probe=probe,
        devices=devices,
        nodes=nodes,
        link=link,
        network=network,
    )
    here = Plan(micro_batch=micro_batch, device=find_device("auto"))
    return plan_module(
        model,
        window,
        job,
        here,
        all_techniques,
        target,
        examples=window.rows * updates,
        loss=loss,
        optimizer=given,
        forward=forward,
    )
