"""A run put together from a job, a plan, a model and data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from snugfit.core.batch import split
from snugfit.core.job import AUTO, Job, Plan
from snugfit.core.selection import check_on, listed
from snugfit.core.technique import Technique
from snugfit.data.order import training_order
from snugfit.errors import SettingError
from snugfit.kit.batch_norm import has_batch_norm
from snugfit.results.run_folder import RunFolder
from snugfit.run.events import DOING, Emit, warnings_as_events
from snugfit.run.identity.identity import (
    DETERMINISTIC,
    as_plain,
    check_ranks,
    code_identity,
    data_identity,
    data_of_rank,
    model_identity,
    techniques_identity,
)
from snugfit.run.training.best import SaveBest, check_models
from snugfit.run.training.loop import Training
from snugfit.step.build import Material, make_step, training_loader, validation_loader
from snugfit.step.metrics.metric import (
    AnyMetric,
    check_fit,
    check_metrics,
    check_watched,
    made_metrics,
    monitored,
)
from snugfit.step.start_scores import fill_start_scores
from snugfit.strategies.base import Strategy


def assemble(
    job: Job,
    plan: Plan,
    material: Material,
    optimizer: torch.optim.Optimizer | Technique | None,
    techniques: Sequence[Technique],
    metrics: Mapping[str, AnyMetric],
    *,
    folder: RunFolder | None,
    emit: Emit,
    save_best: SaveBest,
    save_at: Callable[[Path], SaveBest] | None = None,
    identity: Mapping[str, Any] | None = None,
    files: Mapping[str, str] | None = None,
    accept_changes: Sequence[str] = (),
    strategy: Strategy | None = None,
) -> Training:
    """Put a run together.

    Args:
        folder: where the run is written; None writes nothing.
        save_at: writes further models, each to a folder.
        identity: settings that decide the updates; data, model and code join them here.
        files: the sha256 of each source of data that is read whole, by its name.
        accept_changes: names of the identity that a resume lets differ.
        strategy: for several processes; each has a part of every window.
    Raises:
        PlanConflict: techniques exclude each other.
        SettingError: a setting is impossible.
    """
    check_fit(metrics.values(), material.loss)
    rule = job.early_stopping
    if rule is not None and material.validation is None:
        setting = "patience" if rule.patience is not None else "stop_when"
        raise SettingError(
            f"early_stopping.{setting}", "needs data to be measured on", "Give data.validation."
        )
    check_models(job, folder, validated=material.validation is not None)
    _check_batch_norm(material, job, plan)
    own = metrics.items()
    functions = {
        "forward": material.forward,
        "collate": material.collate,
        "stop_when": None if rule is None else rule.stop_when,
        **{f"metrics.{name}": metric for name, metric in own if callable(metric)},
    }
    code = {**code_identity(material.loss, functions), **techniques_identity(listed(optimizer, techniques))}
    model = model_identity(material.model)  # before techniques change it
    described = as_plain({**(identity or {}), **code, "model": model})
    if plan.deterministic:  # a run that was so stays so
        described[DETERMINISTIC] = True
    check_ranks(described, strategy or Strategy())  # before they exchange weights
    with warnings_as_events(emit):
        step = make_step(job, plan, material, optimizer, techniques, strategy)
        train, held_out = (make(job, plan, material, step) for make in (training_loader, validation_loader))
        assert train is not None
        data = data_identity(files or {}, train, held_out, plan.num_workers)  # reads the first rows
    if step.strategy.world_size > 1:
        check_ranks({"data": data_of_rank(data, train, held_out, plan.num_workers)}, step.strategy)
    if material.compares_start:
        fill_start_scores(
            step, material, train=job.train, folder=folder, tell=lambda text: emit(DOING, text=text)
        )
    return Training(
        job=job,
        step=step,
        loader=train,
        validation=held_out,
        metrics=made_metrics(metrics, material.metrics, material.class_names or material.class_counts or ()),
        folder=folder,
        emit=emit,
        save_best=save_best,
        save_at=save_at,
        identity={**described, "data": data},
        planned=plan.micro_batch,
        deterministic=plan.deterministic,
        accept_changes=accept_changes,
    )


def check_settings(
    job: Job,
    plan: Plan,
    techniques: Sequence[Technique],
    metrics: Mapping[str, AnyMetric],
    *,
    validated: bool,
    here: bool = True,
) -> None:
    """Refuse what cannot work before a model is loaded or a folder is made, of techniques that go together.

    Args:
        here: whether it is to run on the device of `plan`; what a device cannot have is no matter where another one is planned for.
    Raises:
        PlanConflict: the device cannot have one of the techniques.
        SettingError: an unknown metric, device or numerics, or a technique looks at a metric that is not evaluated.
    """
    if "loss" in metrics:
        raise SettingError(
            "evaluate.metrics", "'loss' is always evaluated", "Remove it, or give your metric another name."
        )
    check_metrics(metric for metric in metrics.values() if isinstance(metric, str))
    monitored(job.evaluate.best_metric, metrics)
    check_watched(techniques, metrics, validated)
    if plan.num_workers < 0:
        raise SettingError(
            "plan.num_workers", f"must be zero or positive, found {plan.num_workers}", "Give 0 or more."
        )
    if plan.devices > 1 and plan.micro_batch == AUTO and plan.strategy != "ddp":
        raise SettingError(
            "plan.micro_batch",
            f"auto tries what fits on a device by itself, and by plan.strategy={plan.strategy} weights are gathered "
            "by all together",
            "Give a number, or null for each device's whole part of the window.",
        )
    try:
        torch.empty(0, device=plan.device)
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0].rstrip(".")
        raise SettingError(
            "plan.device", f"'{plan.device}' cannot be used here: {reason}", "Use auto or cpu."
        ) from error
    if here:
        check_on(techniques, torch.device(plan.device).type)


def _check_batch_norm(material: Material, job: Job, plan: Plan) -> None:
    """Refuse a run that would come to a batch of one example, of which batch norm has no statistics."""
    if not has_batch_norm(material.model):
        return
    order = training_order(job, material.train)
    micro_batch = None if plan.micro_batch == AUTO else plan.micro_batch
    for rows in reversed(order.cuts.rows(order.windows)):
        if min(len(part) for part in split(rows, micro_batch)) == 1:
            raise SettingError(
                f"train.{job.train.unit_setting}",
                f"a window of {rows} of the {order.examples} examples would be run with a single example in a micro-batch "
                f"(plan.micro_batch: {plan.micro_batch}), and the model has batch norm, which needs two",
                "Choose another global batch or micro-batch.",
            )
