"""Findings that one observation decides: what was seen is a fault wherever it is seen."""

from __future__ import annotations

from collections import Counter

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe.events.log import Log
from snugfit.doctor.observe.events.log_views import trained_models
from snugfit.doctor.observe.events.run_events import CopyUnmoved, Fault, OtherOrder, RateUnused, Rounded
from snugfit.doctor.observe.events.script_events import Forward, Step, WrongAxis
from snugfit.doctor.observe.events.state_events import Restore
from snugfit.doctor.observe.events.term_events import LinearModel

LEAST_SEEN = 3
LEAST_LOOKS, FEW, RISES = 4, 0.2, 1.5
"""Updates, the share of the weights that they change, and how many times as high as in them the rate may become."""
LEAST_UPDATES, LEAST_CALLS = 100, 50


def plain_faults(log: Log) -> list[Finding]:
    """Return what was seen as often as it says that it must be; what follows from an axis, or an order, that is known is none."""
    axis_known, order_known = any(log.of(WrongAxis)), any(log.of(OtherOrder))
    counts = Counter((event.pitfall, event.at) for event in log.of(Fault))
    findings: dict[tuple[str, str], Finding] = {}
    for event in log.of(Fault):
        times = counts[event.pitfall, event.at]
        follows = event.pitfall == "wrong_axis" and axis_known and not event.certain
        follows = follows or (event.pitfall == "mismatched_rows" and order_known and not event.certain)
        if times >= event.least and not follows:
            sure = Certainty.CERTAIN if event.certain else Certainty.LIKELY
            seen = (f"seen {times} times",) if times > 1 else ()
            findings.setdefault(
                (event.pitfall, event.at), Finding(event.pitfall, sure, event.what, event.at, seen, event.fix)
            )
    return list(findings.values())


def rounded_away(log: Log) -> list[Finding]:
    """Detect weights of 16 bits most of which an update does not change, since it is less than half of what they can tell apart."""
    for optimizer in log.optimizers:
        seen = [event for event in log.of(Rounded) if event.optimizer == optimizer.id]
        rates = [(step.update, step.rate) for step in log.of(Step) if step.optimizer == optimizer.id]
        if len(seen) < LEAST_LOOKS or max(event.share for event in seen) >= FEW:
            continue
        looked = {event.update for event in seen}
        then = max((rate for update, rate in rates if update in looked), default=0.0)
        if then and max(rate for _, rate in rates) <= RISES * then:
            largest = max(event.share for event in seen)
            return [
                Finding(
                    "no_gradient",
                    Certainty.LIKELY,
                    f"An update of {optimizer.name} changes {largest:.0%} of the weights of {seen[0].dtype} at most, all of which have a gradient: "
                    "the rest of it is rounded away.",
                    optimizer.at,
                    (f"seen in {len(seen)} updates; the learning rate is {then:g}",),
                    "model.float()   # weights of 32 bits; the forward pass under torch.autocast(device, torch.bfloat16)",
                )
            ]
    return []


def unused_rate(log: Log) -> list[Finding]:
    """Detect a schedule that is computed and printed, while the optimizer keeps the rate that it was made with."""
    rates = {step.rate for step in log.of(Step)}
    if log.schedulers or len(rates) != 1:
        return []
    return [
        Finding(
            "schedule_length",
            Certainty.LIKELY,
            f"`{event.name}` is computed anew in each pass and only shown: all steps have the rate of {rates.copy().pop():g}.",
            event.at,
            ("nothing writes it into optimizer.param_groups",),
            f'for group in optimizer.param_groups:\n    group["lr"] = {event.name}',
        )
        for event in list(log.of(RateUnused))[:1]
    ]


def unmoved_copy(log: Log) -> list[Finding]:
    """Detect a copy of the model that gives targets, and into which no condition ever lets the model's weights."""
    restored = {event.at for event in log.of(Restore)}
    calls = Counter(event.module for event in log.of(Forward) if not event.grad)
    for event in log.of(CopyUnmoved):
        if event.once:
            continue
        model = next((each for each in log.models if each.called == event.name and calls[each.id]), None)
        if model is None or not log.whole or log.updates < LEAST_UPDATES or calls[model.id] < LEAST_CALLS:
            continue
        if event.at not in restored and not any(each.module == model.id for each in log.of(Restore)):
            return [
                Finding(
                    "average_stands_still",
                    Certainty.LIKELY,
                    f"`{event.name}` computes without a graph in {calls[model.id]} passes, and never gets the weights of the model that learns: the condition is never met.",
                    event.at,
                    (f"in {log.updates} updates",),
                    "updates += 1   # what the condition counts\nif updates % every == 0:\n    target.load_state_dict(model.state_dict())",
                )
            ]
    return []


def target_copied_once(log: Log) -> list[Finding]:
    """Detect a target network that is computed with update after update, and has the weights that the model which learns began with."""
    trained = trained_models(log)
    begun = {event.weights for event in log.of(Forward) if event.grad and event.weights}
    for event in (each for each in log.of(CopyUnmoved) if each.once and log.whole):
        for model in (each for each in log.models if each.called == event.name and each.id not in trained):
            passes = [each for each in log.of(Forward) if each.module == model.id]
            states, updates = (
                {each.weights for each in passes if each.weights},
                {each.update for each in passes},
            )
            without = passes and not any(each.grad for each in passes)
            if without and len(updates) >= LEAST_CALLS and len(states) == 1 and states <= begun:
                return [
                    Finding(
                        "average_stands_still",
                        Certainty.LIKELY,
                        f"`{event.name}` computes without a graph before {len(updates)} different updates, always with the weights that the model began with: "
                        "it gets them before the training, and nothing in a loop copies them again.",
                        event.at,
                        (f"first used at {passes[0].at}; {log.updates} updates",),
                        f"if updates % every == 0:\n    {event.name}.load_state_dict(model.state_dict())",
                    )
                ]
    return []


def linear_model(log: Log) -> list[Finding]:
    """Detect a model whose hidden layer has no activation: it gives what one layer would."""
    seen = list(log.of(LinearModel))
    if len(seen) < LEAST_SEEN:
        return []
    inputs, middle, outputs = seen[0].sizes
    return [
        Finding(
            "no_activation",
            Certainty.WORTH_A_LOOK,
            f"Nothing stands between layers from {inputs} to {middle} and from {middle} to {outputs}: together they are one linear layer, and so is the whole model.",
            seen[0].at,
            (f"in each of {len(seen)} passes, as of {seen[0].computed_at}",),
            f"nn.Linear({inputs}, {middle}),\nnn.ReLU(),\nnn.Linear({middle}, {outputs}),",
        )
    ]


DETECTORS = (plain_faults, rounded_away, unused_rate, unmoved_copy, target_copied_once, linear_model)
