"""Findings on scores that are summed up over the batches of a loop, of loops that ran."""

from __future__ import annotations

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe.events.log import Log
from snugfit.doctor.observe.events.run_events import ScoreSum
from snugfit.doctor.observe.events.script_events import Batch, EpochEnd, Forward, Loss
from snugfit.doctor.observe.source.score_sums import (
    ALL_BY_LAST,
    FIRST_ALONE,
    LAST_BY_ALL,
    LOSS_BY_ALL,
    MEANS_BY_ROWS,
    MEANS_IN_LISTS,
    NEVER_ADDED,
    NEVER_BACK,
    ROWS_BY_BATCHES,
    SUM_BESIDE_MEAN,
)

_WAYS = {
    NEVER_BACK: (
        "batch_mean_scores",
        "`{name}` begins before the first epoch and is never set back: what is divided by the batches of one epoch is the sum of all.",
        "{name} = 0.0   # at the beginning of each epoch",
    ),
    FIRST_ALONE: (
        "last_batch_score",
        "The loop over the batches returns with its first pass: `{name}` is the score of the first batch alone.",
        "return {name}   # behind the loop, not in it",
    ),
    LAST_BY_ALL: (
        "last_batch_score",
        "`{name}` counts the hits of the last batch of the loop alone, and is divided by the number of all rows.",
        "hits += (predicted == labels).sum().item()   # in the loop, which sets it to 0 before it begins",
    ),
    LOSS_BY_ALL: (
        "last_batch_score",
        "`{name}` is the loss of the last batch of the loop alone, and is divided by the number of all: what was summed up is not used.",
        "total += {name}.item() * len(inputs)   # in the loop; behind it, total / count",
    ),
    NEVER_ADDED: (
        "batch_mean_scores",
        "`{name}` is set to 0, and nothing is ever added to it: the mean that is made of it is always 0.",
        "{name} += loss.item()   # in each pass of the loop",
    ),
    ALL_BY_LAST: (
        "last_batch_score",
        "`{name}` counts the hits of all batches, and is divided by the rows of the last one alone: each batch sets their number anew, and the share comes out above 1.",
        "rows += len(labels)   # in the loop, which sets it to 0 before it begins",
    ),
    SUM_BESIDE_MEAN: (
        "batch_mean_scores",
        "`{name}` is the sum of the means of the batches, and is shown beside the mean of the training's loss: it is larger by the number of its batches.",
        "{name} += loss.item() * len(inputs)   # and divided by len(loader.dataset)",
    ),
    ROWS_BY_BATCHES: (
        "batch_mean_scores",
        "`{name}` is a sum over rows, each mean times the rows of its batch, and is divided by the number of batches: it comes out as many times too large as a batch has rows.",
        "{name} / len(loader.dataset)   # the rows, as each mean was multiplied by them; or no product, and the batches",
    ),
    MEANS_BY_ROWS: (
        "batch_mean_scores",
        "`{name}` is a sum of means over the rows of each batch, and is divided by the number of rows: it comes out as many times too small as a batch has rows.",
        "{name} += loss.item() * len(inputs)",
    ),
}


FAR_OFF = 0.1
_OF_BATCHES = (LAST_BY_ALL, ALL_BY_LAST, LOSS_BY_ALL, SUM_BESIDE_MEAN)
"""Sums of a loop that say nothing wrong where that has one batch."""
_OF_MEANS = (MEANS_BY_ROWS, ROWS_BY_BATCHES, SUM_BESIDE_MEAN)
"""Sums that say something wrong where a mean of each batch is added."""


def wrong_score_sums(log: Log) -> list[Finding]:
    """Detect scores whose sum over the batches says something else than it seems to."""
    losses = list(log.of(Loss))
    findings = []
    for event in log.of(ScoreSum):
        if event.way == MEANS_IN_LISTS:
            findings += _means_in_lists(log, event)
            continue
        file = event.at.rpartition(":")[0]
        ran = [each for each in (*losses, *log.of(Forward)) if _is_in(each.at, file, event)]
        means = [each.mean for each in losses if _is_in(each.at, file, event)]
        if not ran or (event.way in _OF_MEANS and (not means or not all(each.mean for each in losses))):
            continue
        if (
            event.way == ROWS_BY_BATCHES
            and max((e.rows for e in ran if isinstance(e, Forward)), default=0) < 2
        ):
            continue
        if event.way in _OF_BATCHES and not _has_batches(log, file, event):
            continue
        pitfall, what, fix = (text.format(name=event.name) for text in _WAYS[event.way])
        findings.append(
            Finding(pitfall, Certainty.LIKELY, what, event.at, (f"the loop is at line {event.first}",), fix)
        )
    return findings


def _means_in_lists(log: Log, event: ScoreSum) -> list[Finding]:
    """Return means of batches that are averaged, where the last batch of a pass is much smaller than the others, which are alike.

    Batches of any sizes may each be one thing that is scored, such as the slices of a patient.
    """
    for sizes in _sizes_of_passes(log, event):
        alike = len(sizes) > 1 and len({*sizes[:-1]}) == 1 and sizes[-1] < sizes[0]
        off = 1 / len(sizes) - sizes[-1] / sum(sizes)
        if alike and off >= FAR_OFF:
            total = sum(sizes)
            what = (
                f"The means of {len(sizes)} batches, in `{event.name}`, are averaged: the last one has {sizes[-1]} of {total} rows "
                f"({sizes[-1] / total:.0%}) and a weight of {1 / len(sizes):.0%}."
            )
            seen = f"the loop is at line {event.first}", f"rows: {', '.join(map(str, sizes[:6]))}"
            fix = f"{event.name}.extend(values.tolist())   # of each row; the mean of all behind the loop"
            return [Finding("batch_mean_scores", Certainty.LIKELY, what, event.at, seen, fix)]
    return []


def _sizes_of_passes(log: Log, loop: ScoreSum) -> list[list[int]]:
    """Return the rows of the batches that models were given without a graph, of each pass of a loop over a loader."""
    at = f"{loop.at.rpartition(':')[0]}:{loop.first}"
    passes: list[list[int]] = []
    sizes: list[int] = []
    handed = False
    for event in log.events:
        if isinstance(event, Batch):
            handed = event.at == at
        elif isinstance(event, Forward) and handed and not event.grad:
            sizes.append(event.rows)
            handed = False
        elif isinstance(event, EpochEnd) and event.at == at and sizes:
            passes.append(sizes)
            sizes = []
    return passes


def _is_in(at: str, file: str, loop: ScoreSum) -> bool:
    """Return whether a line is one of a loop's."""
    path, _, number = at.rpartition(":")
    return path == file and number.isdigit() and loop.first <= int(number) <= loop.last


def _has_batches(log: Log, file: str, loop: ScoreSum) -> bool:
    """Return whether a pass of a loop took several batches of a loader."""
    taken = 0
    for event in log.events:
        if isinstance(event, EpochEnd) and event.at == f"{file}:{loop.first}":
            taken = 0
        elif isinstance(event, Batch) and event.at == f"{file}:{loop.first}":
            taken += 1
            if taken > 1:
                return True
    return False


DETECTORS = (wrong_score_sums,)
