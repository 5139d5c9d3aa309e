"""Optimizers that never step: none is asked to, another one steps in its place, or nothing is differentiated."""

from __future__ import annotations

from collections import Counter

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe.events.log import Log
from snugfit.doctor.observe.events.log_views import trained_models
from snugfit.doctor.observe.events.script_events import Backward, Batch, EpochEnd, Forward, Loss, Step
from snugfit.doctor.observe.events.state_events import Restore

LEAST_UPDATES = 3
LEAST_PASSES = 8
LEAST_EPOCHS = 2


def never_stepped(log: Log) -> list[Finding]:
    """Detect an optimizer that never steps, though its parameters get gradients again and again and no other moves them."""
    stepped = {step.optimizer for step in log.of(Step)}
    moved = {number for each in log.optimizers if each.id in stepped for number in each.parameters}
    ended = log.whole or log.updates >= LEAST_UPDATES
    for optimizer in log.optimizers if ended and not log.unwatched else []:
        own = set(optimizer.parameters)
        passes = sum(1 for event in log.of(Backward) if optimizer.id in event.touched)
        if optimizer.id in stepped or own & moved or passes < LEAST_PASSES:
            continue
        return [
            Finding(
                "never_stepped",
                Certainty.CERTAIN,
                f"{optimizer.name} never steps, and {passes} backward passes gave its parameters gradients: they never train.",
                _stepped_instead(log, optimizer.id) or optimizer.at,
                (f"{len(own)} parameters; {log.updates} steps of another optimizer",),
                "loss.backward()\noptimizer.step()",
            )
        ]
    return []


def never_differentiated(log: Log) -> list[Finding]:
    """Detect a loop over several epochs of a loader that computes a loss of a model in training mode, with a graph through which nothing is differentiated, though an optimizer has its weights."""
    acts = any(isinstance(event, Backward | Step | Restore) for event in log.events)
    if acts or not log.whole or log.unwatched or log.traced or log.passes_unseen or not log.optimizers:
        return []
    ends = Counter(event.loader for event in log.of(EpochEnd))
    trained, models = trained_models(log), {each.id: each for each in log.models}
    losses: dict[tuple[str, int], int] = {}
    loader, learner = 0, 0
    for event in log.events:
        if isinstance(event, Batch):
            loader, learner = event.loader, 0
        elif isinstance(event, Forward):
            learner = event.module if event.grad and event.training and event.module in trained else 0
        elif isinstance(event, Loss) and event.grad and learner and ends[loader] >= LEAST_EPOCHS:
            losses[event.at, learner] = losses.get((event.at, learner), 0) + 1
    for (at, model), count in losses.items():
        weights = {each.weights for each in log.of(Forward) if each.module == model and each.weights}
        weights |= {models[model].last_weights} - {""}
        if count < LEAST_PASSES or len(weights) != 1:  # moved by hand
            continue
        optimizer = log.optimizers[0]
        return [
            Finding(
                "never_stepped",
                Certainty.CERTAIN,
                f"{optimizer.name} never steps: {count} losses of a model in training mode are computed, and nothing is differentiated. Its weights stay as they were drawn.",
                at,
                (f"the optimizer is made at {optimizer.at}", "no backward pass, and no step"),
                "optimizer.zero_grad()\nloss.backward()\noptimizer.step()",
            )
        ]
    return []


def _stepped_instead(log: Log, idle: int) -> str:
    """Return the line at which another optimizer steps, without a new gradient of its own, behind backward passes of one that never steps; "" without."""
    lines: dict[str, int] = {}
    touched: set[int] = set()  # since the last step
    for event in log.events:
        if isinstance(event, Backward):
            touched |= {*event.touched}
        elif isinstance(event, Step):
            if idle in touched and event.optimizer not in touched:
                lines[event.at] = lines.get(event.at, 0) + 1
            touched = set()
    at = max(lines, key=lines.__getitem__, default="")
    return at if lines.get(at, 0) >= LEAST_PASSES else ""


DETECTORS = (never_stepped, never_differentiated)
