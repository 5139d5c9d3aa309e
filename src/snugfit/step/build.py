"""The step and the data loaders of a run, made of a job, a plan, a model and data."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from snugfit.core.job import AUTO, Job, Plan
from snugfit.core.loss_terms import Loss
from snugfit.core.random import derive_seed
from snugfit.core.technique import Technique
from snugfit.data.loader import Collate, Loader
from snugfit.data.order import Order, total_windows, training_order
from snugfit.errors import DataError, PlanConflict, SettingError
from snugfit.kit.placement import place_
from snugfit.kit.quantized.quantize import weight_sizes
from snugfit.step.metrics.answer_scores import AnswerScores
from snugfit.step.metrics.metric import RowMetric
from snugfit.step.state import check_saved
from snugfit.step.step import Forward, Step
from snugfit.strategies.base import Strategy
from snugfit.system.rounding import NO_FLOAT64, fix_sums


@dataclass(frozen=True)
class Material:
    """The material of a training: a module and map-style data sets, however they came about.

    `metrics` are those that a task makes of its data, by their names; `class_counts` as `core.technique.Context` has them;
    `class_names` are those of labels, tags or pixels, in the order of their numbers.
    """

    model: nn.Module
    train: Any
    validation: Any | None
    loss: str | Loss
    collate: Collate | None = None
    forward: Forward | None = None
    load: Callable[[str], nn.Module] | None = None
    metrics: Mapping[str, RowMetric] = field(default_factory=dict)
    class_counts: Mapping[str, int] | None = None
    class_names: tuple[str, ...] = ()

    @property
    def compares_start(self) -> bool:
        """Return whether the loss compares the model with itself before the first update (`step.start_scores`)."""
        return isinstance(self.forward, AnswerScores) and self.forward.loss.compares_start


def training_loader(job: Job, plan: Plan, material: Material, step: Step | None = None) -> Loader:
    """Return the windows of a run, in its order; what a step's rank has of them."""
    return _loader(plan, material, material.train, training_order(job, material.train), step, "training")


def validation_loader(job: Job, plan: Plan, material: Material, step: Step | None = None) -> Loader | None:
    """Return the batches that a run scores, or what a step's rank has of them; None where it has none."""
    held_out = material.validation
    if held_out is None or not len(held_out):
        return None
    order = Order(len(held_out), job.evaluation_batch, job.train.seed, shuffle=False)
    return _loader(plan, material, held_out, order, step, "validation")


def _loader(
    plan: Plan,
    material: Material,
    dataset: Any,
    order: Order,
    step: Step | None,
    split: str,
) -> Loader:
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
    """Return the step of a run, before anything is trained.

    Args:
        strategy: for several devices; None is for one.
    Raises:
        PlanConflict: techniques exclude each other, or keep in host memory what the strategy spreads over devices.
        SettingError: a setting is impossible, or does not suit the model.
    """
    if plan.device == "cpu":
        fix_sums()  # before the first product of the run
    _check_types(material.model, torch.device(plan.device))
    staying = [name for technique in techniques for name in technique.stays(material.model)]
    sharded = strategy is not None and strategy.shards
    if sharded and staying:
        raise PlanConflict(
            "strategy",
            f"'{staying[0]}' and {len(staying) - 1} more modules are to stay in host memory by a technique, and a "
            "sharded model is spread over the devices",
            "Remove the technique, or copy the model to each device (ddp).",
        )
    step = Step(
        material.model if sharded else place_(material.model, plan.device, staying),
        optimizer,
        material.loss,
        techniques,
        micro_batch=None if plan.micro_batch == AUTO else plan.micro_batch,
        total_updates=total_windows(job, material.train),
        seed=job.train.seed,
        forward=material.forward,
        nominal=float(job.train.sizes.last),
        cut_padding=plan.cut_padding,
        device=plan.device,
        load=material.load,
        strategy=strategy,
        class_counts=material.class_counts,
    )
    check_saved(step)
    step.seams.begin(
        step.model, step.progress, job.train.seed
    )  # what is frozen at first is not counted as trained
    return step


def _check_types(model: nn.Module, device: torch.device) -> None:
    """Refuse a model with tensors in a type that the device does not have, of which torch would name none.

    Raises:
        SettingError: names the first one.
    """
    if device.type not in NO_FLOAT64:
        return
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if tensor.dtype in (torch.float64, torch.complex128):
            raise SettingError(
                "model",
                f"'{name}' is in {str(tensor.dtype).removeprefix('torch.')}, and {device.type} has no float64",
                "Call model.float() before, or train on a CPU.",
            )


_MOST_COLUMNS = 4
"""A tuple of more tensors holds examples, one of fewer inputs and labels of more rows than that."""


def check_dataset(setting: str, dataset: Any) -> None:
    """Refuse what cannot be trained or scored on.

    Raises:
        DataError: not a map-style data set, or an empty one.
    """
    if isinstance(dataset, DataLoader):
        raise DataError(
            setting,
            "is a DataLoader",
            "Give its data set: Snugfit makes the batches itself, by global_batch, collate and num_workers.",
        )
    if isinstance(dataset, str):
        raise DataError(
            setting,
            f"is the text '{dataset[:80]}', and rows are expected",
            "Give a data set; a file is trained on by a recipe, or by: snugfit train --data FILE",
        )
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(
            setting,
            f"is a {type(dataset).__name__}",
            "Give a data set with a length and an index: a list, or a torch.utils.data.Dataset.",
        )
    if len(dataset) == 0:
        raise DataError(setting, "holds no examples", "Give at least one.")
    if (rows := _rows_of_columns(dataset)) is not None:
        raise DataError(
            setting,
            f"is a {type(dataset).__name__} of columns ({len(dataset)}, each of {rows:,} rows), and not {rows:,} examples",
            "Give a data set of rows, such as torch.utils.data.TensorDataset(inputs, labels) or a list of dicts.",
        )


def _rows_of_columns(dataset: Any) -> int | None:
    """Return the rows of inputs and labels that lie beside each other, as (inputs, labels); None where it is a data set of examples."""
    if isinstance(dataset, Mapping):
        columns = list(dataset.values())
    else:
        columns = list(dataset) if isinstance(dataset, tuple) and 2 <= len(dataset) <= _MOST_COLUMNS else []
    if not columns or not all(isinstance(each, (torch.Tensor, np.ndarray)) and each.ndim for each in columns):
        return None
    rows = {len(each) for each in columns}
    return rows.pop() if len(rows) == 1 and max(rows) > _MOST_COLUMNS else None


def find_device(setting: str) -> str:
    """Return the device that 'auto' stands for here: an accelerator where there is one."""
    if setting != "auto":
        return setting
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if accelerator is None else accelerator.type


def hold_out(dataset: Any, fraction: float, seed: int) -> tuple[Any, Any]:
    """Split a map-style dataset into training and validation parts, by the seed.

    Raises:
        DataError: not a fraction, or one of the parts would be empty.
    """
    count = len(dataset)
    if not 0 < fraction < 1:
        raise DataError(
            "data.validation",
            f"got {fraction:g}, expected a fraction between 0 and 1, such as 0.1",
            "Give such a fraction.",
        )
    held_out = round(count * fraction)
    if not 0 < held_out < count:
        raise DataError(
            "data.validation",
            f"{fraction:g} of {count} examples leaves one part empty",
            "Give another fraction, or more examples.",
        )
    generator = torch.Generator().manual_seed(derive_seed(seed, "hold out"))
    order = torch.randperm(count, generator=generator).tolist()
    return Subset(dataset, sorted(order[held_out:])), Subset(dataset, sorted(order[:held_out]))


def describe_model(model: nn.Module) -> dict[str, int]:
    """Return numbers of parameters: all, and those that train. A quantised weight counts as it was."""
    sizes = weight_sizes(model)
    counts = [(sizes.get(each, each.numel()), each.requires_grad) for each in model.parameters()]
    return {
        "total": sum(count for count, _ in counts),
        "trainable": sum(count for count, train in counts if train),
    }
