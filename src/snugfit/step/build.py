"""A run put together from a job, a plan, a model and data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from snugfit.core.batch import split
from snugfit.core.batch_norm import has_batch_norm
from snugfit.core.job import AUTO, Job, Plan
from snugfit.core.losses import Loss
from snugfit.core.random import derive_seed
from snugfit.core.selection import check, check_on, listed
from snugfit.core.technique import Technique
from snugfit.data.loader import Collate, Loader, Order
from snugfit.errors import DataError, PlanConflict, SettingError
from snugfit.kit.placement import place_
from snugfit.kit.quantized.quantize import weight_sizes
from snugfit.results.run_folder import RunFolder
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
from snugfit.run.training.loop import Training
from snugfit.run.training.result import Emit, SaveBest
from snugfit.run.training.warning_events import warnings_told
from snugfit.run.training.watch import check_watched, monitored
from snugfit.step.metrics import RowMetric, check_fit, check_metrics
from snugfit.step.state import check_saved
from snugfit.step.step import Forward, Step
from snugfit.strategies.base import Strategy
from snugfit.system.mkl_mode import fix_sums


@dataclass(frozen=True)
class Material:
    """What is trained on what: a module and map-style data sets, however they came about."""

    model: nn.Module
    train: Any
    validation: Any | None
    loss: str | Loss
    collate: Collate | None = None
    forward: Forward | None = None
    load: Callable[[str], nn.Module] | None = None


def assemble(
    job: Job,
    plan: Plan,
    material: Material,
    optimizer: torch.optim.Optimizer | Technique | None,
    techniques: Sequence[Technique],
    metrics: Mapping[str, str | RowMetric],
    *,
    folder: RunFolder,
    emit: Emit,
    save_best: SaveBest,
    identity: Mapping[str, Any] | None = None,
    files: Mapping[str, str] | None = None,
    accept_changes: Sequence[str] = (),
    strategy: Strategy | None = None,
) -> Training:
    """Put a run together.

    Args:
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
        raise SettingError(f"early_stopping.{setting}: needs data to be measured on. Give data.validation.")
    examples = len(material.train)
    _check_batch_norm(material.model, job, plan, examples)
    own = metrics.items()
    functions = {
        "forward": material.forward,
        "collate": material.collate,
        "stop_when": None if rule is None else rule.stop_when,
        **{f"metrics.{name}": metric for name, metric in own if not isinstance(metric, str)},
    }
    code = {**code_identity(material.loss, functions), **techniques_identity(listed(optimizer, techniques))}
    model = model_identity(material.model)  # before techniques change it
    described = as_plain({**(identity or {}), **code, "model": model})
    if plan.deterministic:  # a run that was so stays so
        described[DETERMINISTIC] = True
    check_ranks(described, strategy or Strategy())  # before they exchange weights
    with warnings_told(emit):
        step = make_step(job, plan, material, optimizer, techniques, strategy)
    train, held_out = (make(job, plan, material, step) for make in (training_loader, validation_loader))
    assert train is not None
    data = data_identity(files or {}, train, held_out, plan.num_workers)
    if step.strategy.world_size > 1:
        check_ranks({"data": data_of_rank(data, train, held_out, plan.num_workers)}, step.strategy)
    return Training(
        job=job,
        step=step,
        loader=train,
        validation=held_out,
        metrics=metrics,
        folder=folder,
        emit=emit,
        save_best=save_best,
        identity={**described, "data": data},
        planned=plan.micro_batch,
        deterministic=plan.deterministic,
        accept_changes=accept_changes,
    )


def training_loader(job: Job, plan: Plan, material: Material, step: Step | None = None) -> Loader:
    """The windows of a run, in its order; what a step's rank has of them."""
    return _loader(job, plan, material, material.train, job.train.global_batch, job.shuffle, step, "training")


def validation_loader(job: Job, plan: Plan, material: Material, step: Step | None = None) -> Loader | None:
    """The batches that a run scores, or what a step's rank has of them; None where it has none."""
    held_out = material.validation
    if held_out is None or not len(held_out):
        return None
    return _loader(
        job, plan, material, held_out, job.evaluate.batch or job.train.global_batch, False, step, "validation"
    )


def _loader(
    job: Job,
    plan: Plan,
    material: Material,
    dataset: Any,
    batch: int,
    shuffle: bool,
    step: Step | None,
    split: str,
) -> Loader:
    order = Order(len(dataset), batch, job.train.seed, shuffle)
    pin = plan.device.startswith("cuda")
    part = {}
    if step is not None:
        strategy = step.strategy
        part = {"rank": strategy.rank, "ranks": strategy.world_size, "together": step.together}
    return Loader(
        dataset, order, material.collate, num_workers=plan.num_workers, pin=pin, split=split, **part
    )


def make_step(
    job: Job,
    plan: Plan,
    material: Material,
    optimizer: torch.optim.Optimizer | Technique | None,
    techniques: Sequence[Technique],
    strategy: Strategy | None = None,
) -> Step:
    """The step of a run, before anything is trained.

    Args:
        strategy: for several devices; None is for one.
    Raises:
        PlanConflict: techniques exclude each other, or keep in host memory what the strategy spreads over devices.
        SettingError: a setting is impossible, or does not suit the model.
    """
    if plan.device == "cpu":
        fix_sums()  # before the first product of the run
    staying = [name for technique in techniques for name in technique.stays(material.model)]
    sharded = strategy is not None and strategy.shards
    if sharded and staying:
        raise PlanConflict(
            f"'{staying[0]}' and {len(staying) - 1} more modules are to stay in host memory by a technique, and a sharded model is "
            "spread over the devices. Remove the technique, or copy the model to each device (ddp)."
        )
    step = Step(
        material.model if sharded else place_(material.model, plan.device, staying),
        optimizer,
        material.loss,
        techniques,
        micro_batch=None if plan.micro_batch == AUTO else plan.micro_batch,
        total_updates=job.total_windows(len(material.train)),
        seed=job.train.seed,
        forward=material.forward,
        nominal=float(job.train.global_batch),
        cut_padding=plan.cut_padding,
        device=plan.device,
        load=material.load,
        strategy=strategy,
    )
    check_saved(step)
    step.seams.begin(
        step.model, step.progress, job.train.seed
    )  # what is frozen at first is not counted as trained
    return step


def check_settings(
    job: Job,
    plan: Plan,
    techniques: Sequence[Technique],
    metrics: Mapping[str, str | RowMetric],
    *,
    validated: bool,
    here: bool = True,
) -> None:
    """Refuse what cannot work before a model is loaded or a folder is made.

    Args:
        here: whether it is to run on the device of `plan`; what a device cannot have is no matter where another one is planned for.
    Raises:
        PlanConflict: techniques exclude each other, or the device cannot have one.
        SettingError: an unknown metric, device or numerics, or a technique looks at a metric that is not evaluated.
    """
    check(techniques)
    if "loss" in metrics:
        raise SettingError(
            "evaluate.metrics: 'loss' is always evaluated. Remove it, or give your metric another name."
        )
    check_metrics(metric for metric in metrics.values() if isinstance(metric, str))
    monitored(job.evaluate.best_metric, metrics)
    check_watched(techniques, metrics, validated)
    if plan.num_workers < 0:
        raise SettingError(f"plan.num_workers: must be zero or positive, found {plan.num_workers}.")
    if plan.devices > 1 and plan.micro_batch == AUTO and plan.strategy != "ddp":
        raise SettingError(
            f"plan.micro_batch: auto tries what fits on a device by itself, and by plan.strategy={plan.strategy} weights are gathered by "
            "all together. Give a number, or null for each device's whole part of the window."
        )
    try:
        torch.empty(0, device=plan.device)
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise SettingError(
            f"plan.device: '{plan.device}' cannot be used here: {reason}. Use auto or cpu."
        ) from error
    if here:
        check_on(techniques, torch.device(plan.device).type)


def check_dataset(setting: str, dataset: Any) -> None:
    """Refuse what cannot be trained or scored on.

    Raises:
        DataError: not a map-style data set, or an empty one.
    """
    if isinstance(dataset, DataLoader):
        raise DataError(
            f"{setting}: is a DataLoader. Give its data set: Snugfit makes the batches itself, by global_batch, collate and "
            "num_workers."
        )
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"{setting}: is a {type(dataset).__name__}. Give a data set with a length and an index: a list, or a "
            "torch.utils.data.Dataset."
        )
    if len(dataset) == 0:
        raise DataError(f"{setting}: holds no examples.")


def _check_batch_norm(model: nn.Module, job: Job, plan: Plan, examples: int) -> None:
    """Refuse a run that would come to a batch of one example, of which batch norm has no statistics."""
    if not has_batch_norm(model):
        return
    last = examples % job.train.global_batch or job.train.global_batch
    micro_batch = None if plan.micro_batch == AUTO else plan.micro_batch
    for rows in (min(job.train.global_batch, examples), last):
        if min(len(part) for part in split(rows, micro_batch)) == 1:
            raise SettingError(
                f"train.global_batch: a window of {rows} of the {examples} examples would be run with a single example in a "
                f"micro-batch (plan.micro_batch: {plan.micro_batch}), and the model has batch norm, which needs two. Choose "
                "another global batch or micro-batch."
            )


def find_device(setting: str) -> str:
    """The device that 'auto' stands for here: an accelerator where there is one."""
    if setting != "auto":
        return setting
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if accelerator is None else accelerator.type


def hold_out(dataset: Any, fraction: float, seed: int) -> tuple[Any, Any]:
    """Split a map-style dataset into training and validation parts, by the seed.

    Raises:
        DataError: one of the parts would be empty.
    """
    count = len(dataset)
    held_out = round(count * fraction)
    if not 0 < held_out < count:
        raise DataError(f"data.validation: {fraction:g} of {count} examples leaves one part empty.")
    generator = torch.Generator().manual_seed(derive_seed(seed, "hold out"))
    order = torch.randperm(count, generator=generator).tolist()
    return Subset(dataset, sorted(order[held_out:])), Subset(dataset, sorted(order[:held_out]))


def describe_model(model: nn.Module) -> dict[str, int]:
    """Numbers of parameters: all, and those that train. A quantised weight counts as it was."""
    sizes = weight_sizes(model)
    counts = [(sizes.get(each, each.numel()), each.requires_grad) for each in model.parameters()]
    return {
        "total": sum(count for count, _ in counts),
        "trainable": sum(count for count, train in counts if train),
    }
