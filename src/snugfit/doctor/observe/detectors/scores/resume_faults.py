"""Pitfalls of a training that goes on from weights alone: moments and schedules that begin anew."""

from __future__ import annotations

import re

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe.events.log import Log, OptimizerSeen
from snugfit.doctor.observe.events.script_events import Batch, Event, Step
from snugfit.doctor.observe.events.state_events import Restore, Resume, Save, StateRestore
from snugfit.doctor.observe.source.script_syntax import has_word

LEAST_STEPS = 3
_GOES_ON = re.compile(r"resum|start_epoch|continu(e|es|ed|ing)_training", re.IGNORECASE)


def weights_alone(log: Log) -> list[Finding]:
    """Detect a training that the script says to resume, on the same rows by an optimizer of the same line, of which the weights alone were saved.

    The first rate is the same too: a stage of its own has another, or other rows.
    """
    if not any(has_word(file, _GOES_ON) for file in log.sources.values()):
        return []
    for place, event in enumerate(log.events):
        if not isinstance(event, Restore) or event.missing or not event.weights:
            continue
        saved = _saved_last(log.events[:place], event)
        pair = _begun_again(log, place, event) if saved is not None else None
        if saved is None or pair is None:
            continue
        first, last, again = pair
        falls = (
            f" and its rate, which had gone from {first:g} to {last:g}, begins anew" if first != last else ""
        )
        return [
            Finding(
                "partial_resume",
                Certainty.LIKELY,
                f"Training goes on from weights alone: {again.name} begins without moments{falls}.",
                event.at,
                (
                    f"the weights are saved at {saved.at}, without the state of the optimizer made at {again.at}",
                ),
                'torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, path)',
            )
        ]
    return []


def _saved_last(before: list[Event], restored: Restore) -> Save | None:
    """Return what wrote the weights that are put in, if nothing has stepped since and nothing was read that holds more."""
    for event in reversed(before):
        if isinstance(event, Save) and restored.weights in event.weights:
            return event
        if isinstance(event, Step) or _puts_back(event) or (isinstance(event, Resume) and event.optimizer):
            return None
    return None


def _begun_again(log: Log, place: int, restored: Restore) -> tuple[float, float, OptimizerSeen] | None:
    """Return the first and the last rate of the optimizer that stepped before a place among the events, and the one that steps after it in its stead."""
    before, after = log.events[:place], log.events[place:]
    earlier = [event for event in before if isinstance(event, Step)]
    later = [event for event in after if isinstance(event, Step)]
    by_number = {each.id: each for each in log.optimizers}
    old = by_number.get(earlier[-1].optimizer) if earlier else None
    own = [each for each in log.optimizers if set(each.parameters) & set(restored.parameters)]
    new = next((each for each in own if any(step.optimizer == each.id for step in later)), None)
    if old is None or new is None or old is new or any(map(_puts_back, after)):
        return None
    alike = old.at == new.at and old.name == new.name and len(old.parameters) == len(new.parameters)
    rates, others = (
        [step.rate for step in steps if step.optimizer == each.id]
        for each, steps in ((old, earlier), (new, later))
    )
    if not alike or min(len(rates), len(others)) < LEAST_STEPS or rates[0] != others[0]:
        return None
    stands = any(step.optimizer == old.id for step in later)
    loses = old.remembers or rates[0] != rates[-1]
    return None if stands or not loses or not _same_rows(log, before, after) else (rates[0], rates[-1], new)


def _puts_back(event: Event) -> bool:
    return isinstance(event, StateRestore) and not event.empty


def _same_rows(log: Log, before: list[Event], after: list[Event]) -> bool:
    """Return whether the loaders that are read last before, and first after, have one data set."""
    sets = {each.id: each.dataset_id for each in log.loaders}
    handed = [[sets.get(e.loader) for e in events if isinstance(e, Batch)] for events in (before, after)]
    return bool(handed[0] and handed[1]) and handed[1][0] in handed[0]


DETECTORS = (weights_alone,)
