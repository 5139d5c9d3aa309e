"""What a user calls: train from a recipe or from Python, resume, evaluate, predict."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from snugfit.core.job import Job, Plan
from snugfit.core.losses import Loss
from snugfit.core.technique import Technique
from snugfit.data.loader import Collate
from snugfit.data.sources import check_fingerprints
from snugfit.deliver.registry import register_best, resolve_model
from snugfit.errors import RunFolderError, SettingError
from snugfit.models.bundle import save_bundle
from snugfit.session import Display, RunOptions, Tracking, machine, opened, run_session, versions
from snugfit.smoke import overfit_verdict, shorten, verify_reload
from snugfit.tasks import Task, prepare
from snugfit.techniques import find
from snugfit.tracking.cursor import stored_uri
from snugfit.tracking.uri import check_uri, resolve_uri
from snugfit.training.assemble import (
    Material,
    assemble,
    check_dataset,
    check_settings,
    describe_model,
    find_device,
    hold_out,
)
from snugfit.training.evaluate import RowMetric
from snugfit.training.folder import RunFolder
from snugfit.training.loop import RunResult
from snugfit.training.step import Forward

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

_RECIPE = "recipe.yaml"
_PLAN = "plan.json"


def train(
    model: nn.Module,
    data: Any,
    *,
    loss: str | Loss = "cross_entropy",
    optimizer: torch.optim.Optimizer | Technique | None = None,
    techniques: Sequence[Technique] = (),
    validation: Any = None,
    metrics: Sequence[str] | Mapping[str, str | RowMetric] = (),
    epochs: float | None = 3.0,
    updates: int | None = None,
    global_batch: int = 32,
    micro_batch: int | None = None,
    best: str | None = None,
    evaluate_every: int | None = None,
    patience: int | None = None,
    checkpoint_every: int | None = None,
    seed: int = 0,
    device: str = "auto",
    num_workers: int = 0,
    collate: Collate | None = None,
    forward: Forward | None = None,
    name: str = "run",
    output: str | Path = "runs",
    resume: str | Path | None = None,
    stop_after_seconds: float | None = None,
    track: bool = True,
    track_uri: str | None = None,
    display: Display | None = None,
) -> RunResult:
    """Train any `nn.Module` on a map-style data set; the model is trained in place.

    Args:
        data: `len()` and `[index]`, of tuples (inputs, labels) or mappings with `labels`.
        validation: another data set, or the fraction of `data` to hold out.
        metrics: names of built-in metrics, or names with `(outputs, batch) -> one value a row`.
        optimizer: a torch optimizer or a technique; AdamW at its defaults if not given.
        epochs, updates: the length of the run; `updates` wins.
        best: the metric that picks the best weights; the first metric if not given, else the loss.
        resume: the folder of a run of the same model, data and settings, to go on from its newest checkpoint.
        track: send the run to MLflow, by default in a database beside the runs.

    Returns:
        How the run ended; `run_dir` has the events, the checkpoints, `best/` and the report.
    Raises:
        UserError: a setting, the data or the folder cannot be used.
        TrainingFailed: the run failed on its own account.
    """
    if isinstance(metrics, str):
        metrics = (metrics,)
    metric_map: dict[str, str | RowMetric] = (
        dict(metrics) if isinstance(metrics, Mapping) else {metric: metric for metric in metrics}
    )
    if validation is None and metric_map:
        raise SettingError(f"metrics: {', '.join(metric_map)} need data to be measured on. Give validation.")
    job = Job(
        global_batch=global_batch,
        epochs=None if updates is not None else epochs,
        windows=updates,
        seed=seed,
        metrics=tuple(metric_map),
        best=best or next(iter(metric_map), "loss"),
        evaluate_every=evaluate_every,
        patience=patience,
        checkpoint_every=checkpoint_every,
    )
    plan = Plan(micro_batch=micro_batch, device=find_device(device), num_workers=num_workers)
    all_techniques = [*([optimizer] if isinstance(optimizer, Technique) else []), *techniques]
    if optimizer is None and not any("optimizer" in technique.card.seams for technique in techniques):
        all_techniques.insert(0, find("adamw")())
    check_settings(job, plan, all_techniques, metric_map)
    check_dataset("data", data)
    held_out = validation
    if isinstance(validation, (int, float)):
        data, held_out = hold_out(data, validation, seed)
    elif validation is not None:
        check_dataset("validation", validation)
    folder = RunFolder.create(Path(output), name) if resume is None else RunFolder.open(Path(resume))

    def save_best(path: Path, description: Mapping[str, Any]) -> None:
        save_bundle(path, model, {"task": "python", "model": None, **description})

    with opened(folder, display) as events:
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
            identity=_identity(job, len(data), optimizer, all_techniques),
        )
        described = {
            "recipe": {
                "evaluate": {"best": job.best},
                "techniques": [_describe(each) for each in all_techniques],
            },
            "data": {"train": len(data), "validation": 0 if held_out is None else len(held_out)},
        }
        header = _header(name, folder, training, plan, described)
        tracking = Tracking(_tracker_uri(track_uri, Path(output), folder)) if track else None
        return run_session(
            training,
            events,
            header,
            tracking=tracking,
            options=RunOptions(stop_after_seconds=stop_after_seconds),
            resume=resume is not None,
        )


def train_recipe(
    recipe: Recipe, options: RunOptions | None = None, display: Display | None = None
) -> RunResult:
    """Train what a recipe says.

    Raises:
        UserError: the recipe, its data or its model cannot be used; no run's folder is left behind.
        TrainingFailed: the run failed on its own account.
    """
    return _run_recipe(recipe, options or RunOptions(), display, None)


def resume_run(
    run: str | Path, options: RunOptions | None = None, display: Display | None = None
) -> RunResult:
    """Go on with a stopped or killed run from its newest valid checkpoint.

    Raises:
        UserError: not a run's folder, nothing to go on from, or the data changed.
        TrainingFailed: the run failed on its own account.
    """
    from snugfit.recipe import load_recipe

    folder = RunFolder.open(Path(run))
    if not (folder.path / _RECIPE).exists():
        raise RunFolderError(
            f"{run}: has no {_RECIPE}. Runs made in Python go on with snugfit.train(…, resume=…)."
        )
    return _run_recipe(load_recipe(folder.path / _RECIPE), options or RunOptions(), display, folder)


def evaluate_run(
    source: str, data: str, *, metrics: Sequence[str] = (), bad_rows: str = "fail", uri: str | None = None
) -> dict[str, Any]:
    """Loss and metrics of a run's best model, or of a registered one, on labelled rows."""
    from snugfit.deliver.predict import evaluate_file

    return evaluate_file(
        resolve_model(source, uri=uri), data, metrics or ("accuracy", "macro_f1"), bad_rows=bad_rows
    )


def predict_rows(
    source: str, data: str, output: str | Path, *, bad_rows: str = "fail", uri: str | None = None
) -> dict[str, Any]:
    """Write `data` with predictions of a run's best model, or of a registered one."""
    from snugfit.deliver.predict import predict_file

    return predict_file(resolve_model(source, uri=uri), data, Path(output), bad_rows=bad_rows)


def plan_recipe(recipe: Recipe) -> dict[str, Any]:
    """The plan of a recipe as it would run here: explicit settings, sizes that are known, nothing predicted."""
    job, plan = _job(recipe), _plan(recipe)
    metrics = {metric: metric for metric in job.metrics}
    check_settings(job, plan, recipe.all_techniques(), metrics)
    task = prepare(recipe)
    examples = len(task.material.train)
    parameters = describe_model(task.material.model)
    weights = sum(p.numel() * p.element_size() for p in task.material.model.parameters())
    return {
        **dataclasses.asdict(plan),
        "global_batch": job.global_batch,
        "micro_batches": -(-job.global_batch // (plan.micro_batch or job.global_batch)),
        "examples": examples,
        "updates_per_epoch": job.windows_per_epoch(examples),
        "total_updates": job.total_windows(examples),
        "parameters": parameters,
        "weights_bytes": weights,
        "data": dict(task.data),
    }


def _run_recipe(
    recipe: Recipe, options: RunOptions, display: Display | None, folder: RunFolder | None
) -> RunResult:
    job, plan = _job(recipe), _plan(recipe)
    smoke = options.fast_dev_run or options.overfit_batches is not None
    techniques = recipe.all_techniques()
    metrics: dict[str, str | RowMetric] = {metric: metric for metric in job.metrics}
    check_settings(job, plan, techniques, metrics)
    uri = None
    if recipe.track.mlflow and not smoke:
        stored = None if folder is None else stored_uri(folder.path)
        uri = resolve_uri(recipe.track.uri, recipe.output, stored=stored)
        check_uri(uri, experiment=recipe.track.experiment, model=recipe.track.register)
    task = prepare(recipe)
    if smoke:
        job, task = shorten(job, task, options)
    resume = folder is not None
    if folder is None:
        folder = RunFolder.create(Path(recipe.output), recipe.name)
        (folder.path / _RECIPE).write_text(recipe.to_yaml(), encoding="utf-8")
        folder.write_json(_PLAN, dataclasses.asdict(plan))
    else:
        check_fingerprints(folder.read_json("data.json"), task.fingerprints)
    folder.write_json("data.json", dict(task.fingerprints))
    with opened(folder, display) as events:
        training = assemble(
            job,
            plan,
            task.material,
            None,
            techniques,
            metrics,
            folder=folder,
            emit=events,
            save_best=task.save_best,
            identity={"recipe": recipe.hash(), "data": dict(task.fingerprints)},
        )
        described = {"recipe": recipe.as_dict(), "data": dict(task.data)}
        header = _header(recipe.name, folder, training, plan, described)
        for message in task.messages:
            events("warning", message=message)
        tracking = None
        if uri is not None:
            register = _registration(recipe, task) if recipe.track.register else None
            tracking = Tracking(uri, recipe.track.experiment, register)

        def conclude(result: RunResult) -> RunResult:
            if options.fast_dev_run:
                verify_reload(training)
            return overfit_verdict(result, folder) if options.overfit_batches is not None else result

        return run_session(
            training, events, header, tracking=tracking, options=options, resume=resume, conclude=conclude
        )


def _registration(recipe: Recipe, task: Task) -> Any:
    def register(folder: RunFolder, uri: str, run_id: str | None) -> Mapping[str, Any]:
        from snugfit.deliver.predict import load_predictor

        assert recipe.track.register is not None
        registered = register_best(
            folder.path,
            name=recipe.track.register,
            uri=uri,
            run_id=run_id,
            example_rows=task.example_rows,
            predict=lambda bundle, rows: load_predictor(bundle).predict(rows),
        )
        return {
            "name": registered.name,
            "version": registered.version,
            "alias": registered.alias,
            "uri": registered.uri,
            "compared": {"rows": registered.rows, "max_abs_difference": registered.max_abs_difference},
        }

    return register


def _job(recipe: Recipe) -> Job:
    evaluate, train = recipe.evaluate, recipe.train
    metrics = recipe.evaluate.metrics
    return Job(
        global_batch=train.global_batch,
        epochs=None if train.updates is not None else train.epochs,
        windows=train.updates,
        seed=train.seed,
        metrics=metrics,
        best=evaluate.best or next(iter(metrics), "loss"),
        evaluate_every=None if evaluate.every == "epoch" else int(evaluate.every),
        evaluate_batch=evaluate.batch,
        patience=recipe.early_stopping.patience if recipe.early_stopping else None,
        non_finite=recipe.non_finite.policy,
        non_finite_limit=recipe.non_finite.limit,
        checkpoint_every=recipe.checkpoint.every,
        checkpoint_keep=recipe.checkpoint.keep,
    )


def _plan(recipe: Recipe) -> Plan:
    settings = recipe.plan
    return Plan(
        micro_batch=settings.micro_batch,
        numerics=settings.numerics,
        device=find_device(settings.device),
        num_workers=settings.num_workers,
    )


def _header(
    name: str, folder: RunFolder, training: Any, plan: Plan, described: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "name": name,
        "id": folder.id,
        "run_dir": str(folder.path),
        "plan": dataclasses.asdict(plan),
        "versions": versions(),
        "machine": machine(plan.device),
        "parameters": describe_model(training.step.model),
        "total_updates": training.total_windows,
        "updates_per_epoch": training.loader.order.windows_per_epoch,
        **described,
    }


def _tracker_uri(setting: str | None, output: Path, folder: RunFolder) -> str:
    uri = resolve_uri(setting, output, stored=stored_uri(folder.path))
    check_uri(uri)
    return uri


def _identity(job: Job, examples: int, optimizer: Any, techniques: Sequence[Technique]) -> dict[str, Any]:
    """What decides the updates of a run made in Python, as far as it can be compared."""
    return {
        "examples": examples,
        "global_batch": job.global_batch,
        "updates": job.total_windows(examples),
        "seed": job.seed,
        "optimizer": type(optimizer).__name__ if isinstance(optimizer, torch.optim.Optimizer) else None,
        "techniques": [_describe(technique) for technique in techniques],
    }


def _describe(technique: Technique) -> dict[str, Any]:
    settings: dict[str, Any] = dataclasses.asdict(technique) if dataclasses.is_dataclass(technique) else {}
    return {technique.card.name: settings}
