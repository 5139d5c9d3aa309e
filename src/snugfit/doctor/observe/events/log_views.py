"""Views of the log that several detectors need: which models are trained, and on which batches; which passes are scored; the windows of updates."""

from __future__ import annotations

from dataclasses import dataclass, field

from snugfit.doctor.observe.events.log import LoaderSeen, Log
from snugfit.doctor.observe.events.script_events import Backward, Batch, Compared, Event, Forward, Loss, Step

LEAST_PASSES = 3


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
