"""Findings on learning rates: a loss that explodes, or that jumps and stays at chance; a range test that leaves its weights."""

from __future__ import annotations

import itertools
import math
import statistics

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe.detectors.updates.mode_faults import PICTURE
from snugfit.doctor.observe.events.log import Log, ModelSeen, OptimizerSeen, SchedulerSeen
from snugfit.doctor.observe.events.run_events import Move
from snugfit.doctor.observe.events.script_events import Backward, Loss, ScheduleStep, Step
from snugfit.doctor.observe.events.state_events import Restore

LEAST_PASSES = 12
EXPLOSION, LARGE = 1e4, 1e3
"""A loss that grows by the first to over the second is on its way to infinity; that of a game of rising rewards is not."""
SLOPE = 100.0
"""A loss that grew so much before it was no number grew because of the rate."""
WEIGHTS = 10.0
JUMP = 3.0
AT_CHANCE = 0.97
RANGE_STEPS, RANGE, EVEN = 10, 1e3, 1.2
LEAST_MOVES, AS_LARGE, AT_FIRST = 4, 0.4, 0.85
"""Moves of the first updates, their size over that of the weights, and a loss at the end over the first one."""
HIGH, WHOLE, LEAST_MATRICES = 0.1, 1.0, 3
"""A rate, a move over the size of the weights, and how many matrices a network has."""
UNMOVED, LOWEST = 1e-6, 1e-5
"""Of a rate that moves nothing: a move over the size of the weights, and the highest rate."""
LEAST_STEPS = 3
NEVER_REACHED, FAR_BEYOND, LEAST_RATE = 0.01, 10.0, 1e-5
VANISHED = 1e-3
"""Shares of the rate that an optimizer is made with."""
_OF_FACTORS = ("LambdaLR", "MultiplicativeLR")
DROP = 2.0
"""A rate that does not fall by as much goes on as a warm-up does."""


def learning_rate(log: Log) -> list[Finding]:
    """Detect that the loss explodes, or jumps up in the first half and stays at chance; where the inputs are far above 1, they are the cause."""
    findings = []
    for optimizer in log.optimizers:
        rates = _rates(log, optimizer)
        values = [event.value for event in log.of(Backward) if event.touched == [optimizer.id]]
        if len(values) < LEAST_PASSES or not rates or _range_test(rates):
            continue
        what = _explosion(values) if _weights_grow(log, optimizer) else ""
        if not what and len({step.optimizer for step in log.of(Step)}) == 1:
            what = _jump(*_class_losses(log))
        certainty = Certainty.CERTAIN if what else Certainty.LIKELY
        what = what or _overshoot(log, optimizer, values) or _leaps(log, optimizer, max(rates))
        far = _far_inputs(log, optimizer) if what else None
        if far is not None:
            findings.append(
                Finding(
                    "unscaled_inputs",
                    Certainty.LIKELY,
                    f"The first layer gets values of {far.input_scale:.3g} (root mean square), and is drawn for values of about 1: {what[0].lower()}{what[1:]}",
                    far.at,
                    (
                        f"first layer: {far.first_layer or far.name}",
                        f"no rate does for such inputs; that of {optimizer.name} is {max(rates):g}",
                    ),
                    "pictures = pictures / 255   # before a mean and a deviation of such pictures; rows = (rows - mean) / deviation",
                )
            )
        elif what:
            findings.append(
                Finding(
                    "learning_rate",
                    certainty,
                    f"{what} The learning rate of {optimizer.name} is {max(rates):g}.",
                    optimizer.at,
                    (f"{len(values)} backward passes; the first loss is {values[0]:.4g}",),
                    f"lr={_lower(max(rates)):g}   # a thirtieth; and torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
                )
            )
    return findings


def rate_by_hand(log: Log) -> list[Finding]:
    """Detect a loss that explodes where the script moves its weights itself, without an optimizer."""
    passes = list(log.of(Backward))
    values = [event.value for event in passes]
    if log.optimizers or len(values) < LEAST_PASSES or not any(event.of_inputs for event in passes):
        return []
    what = _explosion(values)
    return (
        [
            Finding(
                "learning_rate",
                Certainty.CERTAIN,
                f"{what} The script moves its weights by hand.",
                passes[0].at,
                (f"{len(values)} backward passes; the first loss is {values[0]:.4g}",),
                "loss = errors.mean()   # a sum over the rows is a rate that is as many times higher; or a thirtieth of the rate",
            )
        ]
        if what
        else []
    )


def _far_inputs(log: Log, optimizer: OptimizerSeen) -> ModelSeen | None:
    """Return a model that the optimizer trains and whose inputs are so large that every step is too long."""
    own = {each.model for each in log.parameters if each.id in set(optimizer.parameters)}
    far = [each for each in log.models if each.id in own and each.input_scale >= PICTURE and not each.image]
    return next(iter(far), None)


def _lower(rate: float) -> float:
    return float(f"{rate / 30:.1g}")


def _rates(log: Log, optimizer: OptimizerSeen) -> list[float]:
    return [step.rate for step in log.of(Step) if step.optimizer == optimizer.id]


def _weights_grow(log: Log, optimizer: OptimizerSeen) -> bool:
    """Return whether the weights have grown by far, or are no numbers: else it is the targets that grow."""
    sizes = [step.weights for step in log.of(Step) if step.optimizer == optimizer.id and step.weights]
    return any(not size < WEIGHTS * sizes[0] for size in sizes[1:])


def _explosion(values: list[float]) -> str:
    """Return how the loss grows without end; "" where it does not."""
    finite = list(itertools.takewhile(math.isfinite, values))
    if len(finite) < 2:
        return ""
    first = max(statistics.median(finite[:3]) if len(finite) > 3 else finite[0], 1e-2)
    if len(finite) < len(values) and not any(map(math.isfinite, values[len(finite) :])):
        if max(finite[-3:]) >= SLOPE * first:
            return f"The loss grows from {first:.3g} to {max(finite[-3:]):.3g}, and is no number after {len(finite)} passes."
        return ""
    last = statistics.median(finite[-max(len(finite) // 4, 1) :])
    explodes = len(finite) == len(values) and last >= max(EXPLOSION * first, LARGE)
    return f"The loss grows from {first:.3g} to {last:.3g}." if explodes else ""


def _overshoot(log: Log, optimizer: OptimizerSeen, values: list[float]) -> str:
    """Return that each of the first steps is as large as the weights, and the loss is not smaller at the end; "" where they are not."""
    shares = [event.share for event in log.of(Move) if event.optimizer == optimizer.id]
    finite = [each for each in values if math.isfinite(each)]
    if len(shares) < LEAST_MOVES or len(finite) < LEAST_PASSES or statistics.median(shares) < AS_LARGE:
        return ""
    last = statistics.median(finite[-(len(finite) // 4) :])
    if finite[0] <= 0 or last < AT_FIRST * finite[0]:
        return ""
    return f"A step moves the weights by {statistics.median(shares):.0%} of the size that they had at first, and the loss is {last:.3g} at the end, after {finite[0]:.3g} at first."


def _leaps(log: Log, optimizer: OptimizerSeen, rate: float) -> str:
    """Return that an optimizer of Adam's kind moves a network's weights by more than their size in each of the first steps; "" where it does not.

    Norms keep the loss of such a network finite, and hide that it learns little. One layer may begin near 0.
    """
    own = set(optimizer.parameters)
    matrices = sum(each.id in own and each.dims > 1 for each in log.parameters)
    shares = [event.share for event in log.of(Move) if event.optimizer == optimizer.id]
    adaptive = "adam" in optimizer.name.lower()
    if not adaptive or rate < HIGH or matrices < LEAST_MATRICES or len(shares) < LEAST_MOVES:
        return ""
    if statistics.median(shares) < WHOLE:
        return ""
    return f"Each of the first steps moves the weights by {statistics.median(shares):.1f} times the size that they had at first."


def _class_losses(log: Log) -> tuple[list[float], int]:
    """Return the differentiated means of losses over classes, and the number of classes."""
    values, last, classes = [], None, 0
    for event in log.events:
        if isinstance(event, Loss) and event.grad and event.classes > 1 and event.mean:
            last = event
        elif isinstance(event, Backward):
            if last is not None and event.ratio == 1.0 and math.isfinite(event.value):
                values.append(event.value)
                classes = max(classes, last.classes)
            last = None
    return values, classes


def _jump(values: list[float], classes: int) -> str:
    """Return how a loss over classes jumps up and stays at what a guess gives; "" where it does not."""
    if len(values) < LEAST_PASSES or classes < 2:
        return ""
    chance, first = math.log(classes), values[0]
    peak = max(values[: len(values) // 2])
    last = statistics.median(values[-(len(values) // 4) :])
    if peak < JUMP * max(first, chance) or last < AT_CHANCE * chance:
        return ""
    return f"The loss jumps from {first:.3g} to {peak:.3g} and stays at {last:.3g}; a guess among {classes} classes gives {chance:.3g}."


def _range_test(rates: list[float]) -> int:
    """Return how many steps of a range test come first: rates that grow evenly by a thousand or more; 0 where none is."""
    count = 1
    while count < len(rates) and rates[count] > rates[count - 1] > 0:
        count += 1
    if count < RANGE_STEPS or rates[count - 1] < RANGE * rates[0]:
        return 0
    growth = [after / before for before, after in itertools.pairwise(rates[:count])]
    return count if max(growth) <= EVEN * min(growth) else 0


def unrestored_range_test(log: Log) -> list[Finding]:
    """Detect that training goes on with the weights that a range test of the rate has left, which its last steps have ruined."""
    for optimizer in log.optimizers:
        steps = [
            (place, event)
            for place, event in enumerate(log.events)
            if isinstance(event, Step) and event.optimizer == optimizer.id
        ]
        tested = _range_test([event.rate for _, event in steps])
        if not tested:
            continue
        end, last = steps[tested - 1][0], steps[tested - 1][1].rate
        rest = {optimizer.id: sum(event.rate * DROP <= last for _, event in steps[tested:])}
        for event in log.events[end:]:
            if isinstance(event, Restore):
                break
            if isinstance(event, Step) and event.optimizer != optimizer.id:
                rest[event.optimizer] = rest.get(event.optimizer, 0) + 1
        own = set(optimizer.parameters)
        goes_on = [
            each
            for each in log.optimizers
            if rest.get(each.id, 0) >= LEAST_STEPS and own & set(each.parameters)
        ]
        if goes_on:
            rates = [event.rate for _, event in steps[:tested]]
            # a finder in a module of its own is not to be mended where training goes on
            in_module = steps[0][1].at.rpartition(":")[0] != optimizer.at.rpartition(":")[0]
            at, other = (optimizer.at, goes_on[-1].at) if in_module else (goes_on[-1].at, optimizer.at)
            return [
                Finding(
                    "range_test_kept",
                    Certainty.LIKELY,
                    f"{tested} steps at rates from {rates[0]:.1g} to {rates[-1]:.2g} test the learning rate, and training goes on with "
                    "the weights that they leave.",
                    at,
                    (f"{'training' if in_module else 'the test'} has its optimizer from {other}",),
                    "start = copy.deepcopy(model.state_dict())   # before the test\nmodel.load_state_dict(start)   # after it",
                )
            ]
    return []


def scheduled_rate(log: Log) -> list[Finding]:
    """Detect a schedule whose factors never come near 1, or go far beyond it: they are rates, or steps, not factors."""
    for optimizer in log.optimizers:
        steps = [step for step in log.of(Step) if step.optimizer == optimizer.id]
        base = max((step.base for step in steps), default=0.0)
        schedule = next((each for each in log.schedulers if each.optimizer == optimizer.id), None)
        if not log.whole or len(steps) < LEAST_PASSES or not base or schedule is None:
            continue
        rates = [step.rate for step in steps]
        largest = max(rates)
        if min(rates) < 0:
            return [_negative(optimizer, schedule, rates)]
        rises = rates[-1] == largest > rates[0]
        # a rate of 1 is made to be multiplied by rates, as those of a warm-up by the width of the model
        are_rates = base == 1 and schedule.name in _OF_FACTORS and largest >= LEAST_RATE
        slow = 0 < largest < NEVER_REACHED * base and not rises and not are_rates
        gone = sum(rate < VANISHED * largest for rate in rates[rates.index(largest) :])
        if gone > len(rates) / 2:
            return [
                Finding(
                    "learning_rate",
                    Certainty.LIKELY,
                    f"The rate of {optimizer.name} falls from {largest:.3g} to {rates[-1]:.2g}: {gone} of {len(rates)} steps have less than a "
                    "thousandth of it.",
                    schedule.at,
                    (
                        f"{schedule.name}, stepped {sum(e.scheduler == schedule.id for e in log.of(ScheduleStep))} times",
                    ),
                    "for epoch in range(epochs):\n    ...\n    scheduler.step()   # once in each epoch, if its numbers are epochs",
                )
            ]
        fast = schedule.name in _OF_FACTORS and largest > FAR_BEYOND * base and not _range_test(rates)
        if slow or fast:
            return [
                Finding(
                    "learning_rate",
                    Certainty.LIKELY,
                    f"{optimizer.name} is made with a rate of {base:g}, and the schedule takes it to {largest:.3g} at most.",
                    schedule.at,
                    (
                        f"{schedule.name}; {len(steps)} steps; the first rate is {rates[0]:.3g}, the last {rates[-1]:.3g}",
                    ),
                    "LambdaLR(optimizer, lambda step: 1 - step / steps)   # a factor of the rate, not the rate",
                )
            ]
    return []


def _negative(optimizer: OptimizerSeen, schedule: SchedulerSeen, rates: list[float]) -> Finding:
    """Return what a schedule is that goes below 0: the loss is climbed."""
    first = next(place for place, rate in enumerate(rates) if rate < 0)
    return Finding(
        "schedule_length",
        Certainty.CERTAIN,
        f"The rate of {optimizer.name} is below 0 from step {first + 1} of {len(rates)} on: the loss is climbed, since the schedule has passed its end.",
        schedule.at,
        (f"{schedule.name}; the last rate is {rates[-1]:.3g}",),
        "LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))   # steps: how often scheduler.step() will be called",
    )


def rate_of_nothing(log: Log) -> list[Finding]:
    """Detect a rate so low that an update is less than what the weights' 32 bits tell apart, or next to it, and that never rises."""
    for optimizer in log.optimizers:
        moves = [event for event in log.of(Move) if event.optimizer == optimizer.id]
        steps = [step for step in log.of(Step) if step.optimizer == optimizer.id]
        looked = {event.update for event in moves}
        then = [step.rate for step in steps if step.update in looked]
        highest = max((step.rate for step in steps), default=0.0)
        if len(moves) < LEAST_MOVES or not max(then, default=0.0) or highest > LOWEST:
            continue
        largest = max(event.share for event in moves) * highest / max(then)
        if largest < UNMOVED:
            return [
                Finding(
                    "learning_rate",
                    Certainty.LIKELY,
                    f"An update of {optimizer.name} moves the weights by {largest:.1g} of their size at most: at a rate of {highest:g} they stay where they are.",
                    optimizer.at,
                    (f"seen in {len(moves)} updates; weights of 32 bits tell apart 1e-7 of their size",),
                    "lr=1e-3   # of Adam's kind; 0.1 of plain gradient descent",
                )
            ]
    return []


DETECTORS = (learning_rate, rate_by_hand, rate_of_nothing, scheduled_rate, unrestored_range_test)
