"""Watch learning rate schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer, lr_scheduler

from snugfit.doctor.observe.events.log import SchedulerSeen
from snugfit.doctor.observe.events.script_events import ScheduleStep
from snugfit.doctor.observe.events.state_events import StateRestore
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where

_Call = Callable[..., Any]


def length_of(scheduler: Any) -> int:
    """Return the number of steps that a schedule was made for; 0 where it has no end.

    Warm-ups (`LinearLR`, `ConstantLR`) end early by design, so they have none.
    """
    if isinstance(scheduler, lr_scheduler.OneCycleLR):
        return int(scheduler.total_steps)
    if isinstance(scheduler, lr_scheduler.CosineAnnealingLR):
        return int(scheduler.T_max)
    if isinstance(scheduler, lr_scheduler.PolynomialLR):
        return int(scheduler.total_iters)
    if isinstance(scheduler, lr_scheduler.LambdaLR):
        shape = scheduler.lr_lambdas[0]  # transformers' schedules are partial functions
        return int(shape.keywords.get("num_training_steps", 0)) if isinstance(shape, partial) else 0
    return 0


def waited_for(scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, float]:
    """Return which way is better to a schedule that waits for a plateau, and the score that it gets."""
    if not isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        return "", math.nan
    return scheduler.mode, float(args[0] if args else kwargs["metrics"])


def is_of(score: float, losses: list[tuple[float, int]]) -> bool:
    """Return whether a score is the sum, a mean, or the last of the losses of an evaluation's batches.

    >>> is_of(1.25, [(1.0, 30), (2.0, 10)]), is_of(1.5, [(1.0, 30), (2.0, 10)]), is_of(0.7, [(1.0, 30), (2.0, 10)])
    (True, True, False)
    """
    if not losses:
        return False
    total, rows = sum(value for value, _ in losses), sum(count for _, count in losses)
    weighed = sum(value * count for value, count in losses)
    last = losses[-1][0]
    known = (total, total / len(losses), weighed, weighed / max(rows, 1), total / max(rows, 1), last)
    return any(math.isclose(score, each, rel_tol=1e-4) for each in known if each)


def optimizer_of(scheduler: Any) -> Any:
    """Return the optimizer of a schedule, that which Accelerate and others wrap in one of theirs."""
    optimizer: Any = getattr(scheduler, "optimizer", None)
    while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = optimizer.optimizer
    return optimizer


def watch_schedules(recorder: Recorder, patches: Patches) -> None:
    """Record each schedule and its steps; those that a schedule makes of others, or in its constructor, do not count."""
    inside = [0]

    def initialising(original: _Call) -> _Call:
        def __init__(scheduler: Any, *args: Any, **kwargs: Any) -> None:
            inside[0] += 1
            try:
                original(scheduler, *args, **kwargs)
            finally:
                inside[0] -= 1
            if not inside[0]:
                with recorder.guard():
                    note(scheduler)
                    recorder.waited_for = recorder.waited_for or getattr(scheduler, "mode", "") == "max"

        return __init__

    def note(scheduler: Any) -> None:
        recorder.log.schedulers.append(
            SchedulerSeen(
                recorder.number(scheduler),
                type(scheduler).__name__,
                recorder.settings_at or where(),  # a trainer makes it of its arguments
                recorder.number(optimizer_of(scheduler)),
                length_of(scheduler),
            )
        )

    def stepping(original: _Call) -> _Call:
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            if (
                not torch.compiler.is_dynamo_compiling()
                and not inside[0]
                and (recorder.resting or recorder.active)
            ):
                with recorder.guard():
                    mode, metric = waited_for(scheduler, args, kwargs)
                    number = recorder.number(scheduler)
                    of_losses = mode == "max" and is_of(metric, recorder.scored_losses)
                    recorder.scored_losses.clear()
                    first = getattr(scheduler, "last_epoch", None) == 0
                    own = recorder.optimizers.get(recorder.number(optimizer_of(scheduler)))
                    updates = 0 if own is None else own.steps
                    recorder.add(
                        ScheduleStep(
                            where(), recorder.log.updates, number, mode, metric, of_losses, first, updates
                        )
                    )
            inside[0] += 1
            try:
                return original(scheduler, *args, **kwargs)
            finally:
                inside[0] -= 1

        return step

    def restoring(original: _Call) -> _Call:
        def load_state_dict(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            if not inside[0] and recorder.active:
                with recorder.guard():
                    recorder.add(StateRestore(where(), recorder.log.updates, schedule=True))
            return original(scheduler, *args, **kwargs)

        return load_state_dict

    for kind in (lr_scheduler.LRScheduler, *_below(lr_scheduler.LRScheduler)):
        if "__init__" in vars(kind):
            patches.wrap(kind, "__init__", initialising)
        if "step" in vars(kind):
            patches.wrap(kind, "step", stepping)
        if "load_state_dict" in vars(kind):
            patches.wrap(kind, "load_state_dict", restoring)


def _below(kind: type) -> list[type]:
    below: list[type] = kind.__subclasses__()
    return [each for child in below for each in (child, *_below(child))]
