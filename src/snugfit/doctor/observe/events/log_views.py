"""Views of the log that several detectors need: which models are trained, and on which batches; which passes are scored; the windows of updates."""

from __future__ import annotations

from dataclasses import dataclass, field

from snugfit.doctor.observe.events.log import LoaderSeen, Log
from snugfit.doctor.observe.events.script_events import Backward, Batch, Compared, Event, Forward, Loss, Step

LEAST_PASSES = 3
BELOW, EDGE, EVEN = 0.3, 0.1, 0.6
LAST = 0.9
"""Part of the way of a model's weights behind which a copy's are those that it has learned."""
PICTURES = 4


def trained_models(log: Log) -> set[int]:
    """Return the models with a parameter in an optimizer."""
    used = {number for optimizer in log.optimizers for number in optimizer.parameters}
    return {each.model for each in log.parameters if each.id in used}


def training_loaders(log: Log) -> list[LoaderSeen]:
    """Return the loaders whose batches are differentiated."""
    used, current = set(), 0
    for event in log.events:
        if isinstance(event, Batch):
            current = event.loader
        elif isinstance(event, Backward):
            used.add(current)
    return [loader for loader in log.loaders if loader.id in used]


def is_scored(events: list[Event], place: int, *, compared: bool = True) -> bool:
    """Return whether a loss, an argmax or a comparison without a graph follows before the next forward pass, step or backward pass.

    Args:
        compared: whether a comparison by hand is enough, which targets and actions of an agent are made by too.
    """
    for event in events[place + 1 :]:
        if isinstance(event, Loss):
            return not event.grad
        if isinstance(event, Compared) and compared:
            return True
        if isinstance(event, Forward | Step | Backward):
            return False
    return False


def served_unscaled(log: Log) -> tuple[list[Forward], list[Forward]]:
    """Return the passes that taught the only model, with pictures around 0, and those behind the last step, of it or a copy, with different pictures between 0 and 1; none where they are not so."""
    passes = [
        (place, each) for place, each in enumerate(log.events) if isinstance(each, Forward) and each.scale
    ]
    pictures = [(place, each) for place, each in passes if each.axes == PICTURES]
    last = max((place for place, each in enumerate(log.events) if isinstance(each, Step)), default=0)
    trained = trained_models(log)
    learners = {each.module for _, each in passes if each.grad and each.module in trained}
    taught = [each for place, each in pictures if place < last and each.module in learners]
    later = [
        each
        for place, each in pictures
        if place > last
        and not (each.grad or each.training)
        and (each.module in learners or each.way > LAST or each.lag == 0)
    ]
    around = {
        each.at for each in later if each.low < 0 or each.high > 1
    }  # as an evaluation at the end of the last epoch
    served = [each for each in later if each.at not in around]
    if len(learners) != 1 or len(taught) < LEAST_PASSES or not (is_centred(taught) and is_even(taught)):
        return [], []
    different = (
        len({each.scale for each in served}) >= LEAST_PASSES
    )  # not one that is there for its shape alone
    return (taught, served) if different and is_of_shares(served) else ([], [])


def is_centred(passes: list[Forward]) -> bool:
    """Return whether each batch goes far below 0, as one does whose mean was taken away."""
    return all(event.low < -BELOW * event.scale for event in passes)


def is_even(passes: list[Forward]) -> bool:
    """Return whether each batch goes nearly as far below 0 as above."""
    return all(event.low < -EVEN * event.high for event in passes)


def is_of_shares(passes: list[Forward]) -> bool:
    """Return whether all batches lie between 0 and 1, and fill that, as pictures do whose mean was not taken away."""
    between = all(event.low >= 0 and event.high <= 1 for event in passes)
    return between and max(e.high for e in passes) > 1 - EDGE and min(e.low for e in passes) < EDGE


def is_one_batch(events: list[Event]) -> bool:
    """Return whether all passes have one batch, as those of a graph have."""
    passes = [
        (event.rows, event.scale)
        for event in events
        if isinstance(event, Forward) and event.grad and event.scale
    ]
    return len(passes) >= LEAST_PASSES and len(set(passes)) == 1


def steps(log: Log) -> int:
    """Return how many optimizer steps there were."""
    return sum(1 for _ in log.of(Step))


@dataclass
class Window:
    """The backward passes of one optimizer step, at one line, with what came between them."""

    optimizer: int
    passes: list[Backward] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    step: Step | None = None

    def accumulates(self) -> bool:
        """Return whether there are several micro-batches at one line, each with a forward pass of its own through one model."""
        forwards = [event for event in self.events if isinstance(event, Forward) and event.grad]
        loaders = {event.loader for event in self.events if isinstance(event, Batch)}
        same_line = len({each.at for each in self.passes}) == 1
        one_model = bool(forwards) and min(
            map([f.module for f in forwards].count, {f.module for f in forwards})
        ) >= len(self.passes)
        return len(self.passes) > 1 and same_line and one_model and len(loaders) <= 1


def windows(log: Log) -> list[Window]:
    """Return the windows of every optimizer; the last may have no step."""
    closed: list[Window] = []
    open_: dict[int, Window] = {}
    between: list[Event] = []
    for event in log.events:
        for window in open_.values():
            window.events.append(event)
        between.append(event)
        if isinstance(event, Backward):
            for optimizer in event.touched:
                if optimizer not in event.adds_to or optimizer not in open_:
                    if optimizer in open_:
                        closed.append(open_[optimizer])
                    open_[optimizer] = Window(optimizer, events=list(between))
                open_[optimizer].passes.append(event)
            between = []
        elif isinstance(event, Step) and event.optimizer in open_:
            window = open_.pop(event.optimizer)
            window.step = event
            closed.append(window)
    return closed + list(open_.values())
