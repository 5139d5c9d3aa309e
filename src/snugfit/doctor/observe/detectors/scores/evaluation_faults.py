"""Findings on evaluations: what they are given, and how their scores are averaged."""

from __future__ import annotations

import statistics
from collections import Counter
from operator import itemgetter

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe.events.log import Log
from snugfit.doctor.observe.events.log_views import (
    is_centred,
    is_even,
    is_of_shares,
    is_scored,
    served_unscaled,
    trained_models,
    training_loaders,
)
from snugfit.doctor.observe.events.run_events import LengthDivides, MeanOfBatches, OwnStatistics, ScaledAlone
from snugfit.doctor.observe.events.script_events import (
    Backward,
    Batch,
    EpochEnd,
    Event,
    Forward,
    LastScore,
    LengthRead,
    Loss,
)

OTHER_SCALE = 8.0
UNSCALED, LOW, HIGH = 3.0, 0.7, 1.4
"""How much larger rows are that were not scaled than others that were, and what the root mean square of these is."""
ALIKE = 1.25
FAR_OFF, SOME_OFF = 0.1, 0.02
LEAST_PASSES = 3


def random_validation(log: Log) -> list[Finding]:
    """Detect a loader in fixed order, which nothing trains on, whose rows come with the same labels and other inputs each time."""
    training = {loader.id for loader in training_loaders(log)}
    bases = {loader.base_id for loader in training_loaders(log)}
    for loader in log.loaders:
        moved = (
            loader.other_masks if loader.base_id in bases else 0
        )  # a mask is cut and flipped as its picture is
        if loader.id in training or not loader.redrawn + moved or loader.repeated:
            continue
        scored = _scored_of(log, loader.id, by_masks=bool(moved))
        if scored is not None:
            return [
                Finding(
                    "random_validation",
                    Certainty.LIKELY,
                    "Each pass over the validation has "
                    + ("other pictures and masks" if moved else "the same labels and other inputs")
                    + ": they are augmented at random.",
                    loader.at if moved else scored.at,
                    (
                        f"{loader.redrawn + moved + 1} passes of the loader made at {loader.at}, scored at {scored.at}",
                        f"data: {loader.dataset}",
                    ),
                    "train = Subset(Data(transform=augment), rows)\nvalid = Subset(Data(transform=None), other_rows)   # two data sets",
                )
            ]
    return []


def _scored_of(log: Log, loader: int, *, by_masks: bool = False) -> Forward | None:
    """Return the first forward pass without a graph on a batch of this loader that is scored, or any: overlaps with masks are written by hand."""
    current = 0
    for place, event in enumerate(log.events):
        if isinstance(event, Batch):
            current = event.loader
        elif (
            isinstance(event, Forward)
            and not event.grad
            and current == loader
            and (by_masks or is_scored(log.events, place))
        ):
            return event
    return None


def other_statistics(log: Log) -> list[Finding]:
    """Detect that a model is scored on inputs of another scale than it was trained on."""
    for module in trained_models(log):
        passes = [
            (place, event)
            for place, event in enumerate(log.events)
            if isinstance(event, Forward) and event.module == module and event.scale
        ]
        trained = [event.scale for _, event in passes if event.grad]
        scored = [event for place, event in passes if not event.grad and is_scored(log.events, place)]
        if len(trained) < LEAST_PASSES or not scored:
            continue
        before, after = statistics.median(trained), statistics.median(event.scale for event in scored)
        taught = [event for _, event in passes if event.grad]
        pairs = ((taught, scored), (scored, taught))
        # noise that is added to pictures goes below 0 as well, and changes their size by little
        alike = max(before, after) < ALIKE * min(before, after)
        apart = any(
            is_centred(one) and is_of_shares(other) and (not alike or is_even(one)) for one, other in pairs
        )
        # what is scaled has a deviation of about 1, in each batch; what is not may have any
        scaled = all(LOW <= scale <= HIGH for scale in trained)
        raw = scaled and all(event.scale >= UNSCALED * max(trained) for event in scored)
        if max(before, after) >= OTHER_SCALE * min(before, after) or apart or raw:
            return [
                Finding(
                    "other_statistics",
                    Certainty.LIKELY,
                    f"The model is trained on inputs of {before:.3g} (root mean square) and scored on inputs of {after:.3g}"
                    + (": one is shifted to a mean of 0, the other lies between 0 and 1." if apart else "."),
                    scored[0].at,
                    (f"{len(trained)} passes in training, {len(scored)} that are scored",),
                    "mean, std = train.mean(0), train.std(0)\ntrain, test = (train - mean) / std, (test - mean) / std",
                )
            ]
    return _own_statistics(log) or _scaled_alone(log) or _served_unscaled(log)


def _served_unscaled(log: Log) -> list[Finding]:
    """Return pictures that a trained model, or a copy of it, gets behind the last step as they are, where those that taught it had a mean of 0."""
    taught, served = served_unscaled(log)
    if not served:
        return []
    before, after = (statistics.median(event.scale for event in each) for each in (taught, served))
    return [
        Finding(
            "other_statistics",
            Certainty.LIKELY,
            f"The model is trained on pictures of {before:.3g} (root mean square) around a mean of 0, and used on pictures of {after:.3g} that lie between 0 and 1.",
            served[0].at,
            (f"{len(taught)} passes in training, {len(served)} behind it, none of which goes below 0",),
            "picture = normalize(picture)   # by the mean and the deviation of the training",
        )
    ]


def _own_statistics(log: Log) -> list[Finding]:
    """Return rows that are scored, and that were scaled by what was fitted to them."""
    for event in log.of(OwnStatistics):
        return [
            Finding(
                "other_statistics",
                Certainty.CERTAIN,
                f"{event.function} is fitted to the {event.rows} rows that are scored, and to others that are trained on: each has a scale of its own.",
                event.at,
                (f"those that are trained on are scaled at {event.trained_at}",),
                "train = scaler.fit_transform(train)\ntest = scaler.transform(test)   # not fit_transform",
            )
        ]
    return []


def _scaled_alone(log: Log) -> list[Finding]:
    """Return rows that are scored, and have a mean of 0 and a deviation of 1 in each column by themselves, as those that are trained on have."""
    training = {loader.id for loader in training_loaders(log)}
    read = {event.loader for event in log.of(Batch)}
    seen = list(log.of(ScaledAlone))
    taught = [each for each in seen if each.grad or each.loader in training]
    held_out = {id(event) for event in _on_held_out(log)}
    for event in seen:
        scored = not event.grad and (event.loader in read - training if event.loader else True)
        others = [each for each in taught if each.columns == event.columns and each.rows != event.rows]
        if id(event) in held_out and not taught:
            clause, what = ", and never trained on,", " by themselves: they were scaled by their own."
        elif scored and others and len(others) == len(taught):
            clause = ""
            what = f", and so have the {others[0].rows} that are trained on: each was scaled by its own."
        else:
            continue
        range_ = (
            "a least value of 0 and a largest of 1" if event.stretched else "a mean of 0 and a deviation of 1"
        )
        return [
            Finding(
                "other_statistics",
                Certainty.LIKELY,
                f"The {event.rows} rows that are scored{clause} have {range_} in each of {event.columns} columns{what}",
                event.at,
                ("rows that are scaled by others' statistics are some hundredths off",),
                "mean, std = train.mean(0), train.std(0)\ntrain, test = (train - mean) / std, (test - mean) / std",
            )
        ]
    return []


def _on_held_out(log: Log) -> list[ScaledAlone]:
    """Return what was seen of batches that are scored and that no model is trained on, each noted in front of its forward pass."""
    places = [place - 1 for place in log.held_out if place]
    before = [event for event in map(log.events.__getitem__, places) if isinstance(event, ScaledAlone)]
    return [event for event in before if not event.grad and not event.loader]


def batch_mean_scores(log: Log) -> list[Finding]:
    """Detect means of batches that are summed and divided by their number, where the last batch is much smaller.

    A loss that the loop of the training computes too, for another loader, is read beside that of the training, which is such a mean as well.
    """
    own = _by_length(log)
    return own if own and own[0].certainty is Certainty.LIKELY else _means_by_hand(log) or own


def _by_length(log: Log) -> list[Finding]:
    """Return evaluations whose means of batches are divided by the length of their loader."""
    training = {loader.id for loader in training_loaders(log)}
    trained_at = {event.at for event in log.of(Loss) if event.grad}
    scored_at = {event.at for event in log.of(Loss) if not event.grad and event.mean}
    read_in_training = {event.at for event in log.of(LengthRead) if event.loader in training}
    for loader in log.loaders:
        for sizes, read in _averaged_passes(log.events, loader.id):
            total = sum(sizes)
            off = 1 / len(sizes) - sizes[-1] / total
            same_loop = read.at in read_in_training and scored_at <= trained_at
            if off >= SOME_OFF:
                return [
                    Finding(
                        "batch_mean_scores",
                        Certainty.LIKELY if off >= FAR_OFF and not same_loop else Certainty.WORTH_A_LOOK,
                        f"The means of {len(sizes)} batches are averaged: the last one has {sizes[-1]} of {total} rows "
                        f"({sizes[-1] / total:.0%}) and a weight of {1 / len(sizes):.0%}.",
                        read.at,
                        (f"rows: {', '.join(map(str, sizes[:6]))}",),
                        "total += loss.item() * len(batch)\nmean = total / len(loader.dataset)",
                    )
                ]
    return []


def _means_by_hand(log: Log) -> list[Finding]:
    """Return evaluations whose means of batches are averaged by other than the length of a loader."""
    passes: dict[str, list[int]] = {}
    worst: tuple[float, str, list[int]] = (0.0, "", [])
    for event in [*log.events, EpochEnd("", 0, 0)]:
        if isinstance(event, MeanOfBatches):
            passes.setdefault(event.at, []).append(event.rows)
        elif isinstance(event, EpochEnd | Backward):
            for at, rows in passes.items():
                if len(rows) > 1 and sum(rows) > 0:
                    worst = max(worst, (1 / len(rows) - min(rows) / sum(rows), at, rows))
            passes = {}
    off, at, sizes = worst
    if off < SOME_OFF:
        return []
    return [
        Finding(
            "batch_mean_scores",
            Certainty.LIKELY if off >= FAR_OFF else Certainty.WORTH_A_LOOK,
            f"The means of {len(sizes)} batches are averaged: the smallest one has {min(sizes)} of {sum(sizes)} rows "
            f"({min(sizes) / sum(sizes):.0%}) and a weight of {1 / len(sizes):.0%}.",
            at,
            (f"rows: {', '.join(map(str, sizes[:6]))}",),
            "total += loss.item() * len(batch)\nmean = total / len(loader.dataset)",
        )
    ]


def _averaged_passes(events: list[Event], loader: int) -> list[tuple[list[int], LengthRead]]:
    """Return the sizes of the batches of each evaluation that ends with the number of its batches being read, and that reading."""
    passes: list[tuple[list[int], LengthRead]] = []
    sizes: list[int] = []
    current, mean, ended = 0, False, False
    for event in events:
        if isinstance(event, Batch):
            if event.loader == loader and ended:
                sizes, mean, ended = [], False, False
            current = event.loader
        elif isinstance(event, EpochEnd) and event.loader == loader:
            ended = True
        elif isinstance(event, Forward) and current == loader and not ended and not event.grad:
            sizes.append(event.rows)
        elif isinstance(event, Loss) and current == loader and not ended and not event.grad:
            mean = mean or (event.mean and event.function != "argmax")
        elif isinstance(event, LengthRead) and event.loader == loader and ended and mean and len(sizes) > 1:
            passes.append((sizes, event))
            sizes = []
    return passes


def other_length(log: Log) -> list[Finding]:
    """Detect that sums over the batches of an evaluation are divided by the number of another loader's.

    The mean of the training, which is divided by that too, comes before the evaluation begins.
    """
    training = {loader.id for loader in training_loaders(log)}
    current, divided, sizes, mean = 0, False, 0, False
    for event in log.events:
        if isinstance(event, Batch):
            divided = divided and event.loader not in training
            sizes, mean = (sizes + 1, mean) if event.loader == current else (1, False)
            current = event.loader
        elif isinstance(event, Loss):
            mean = mean or (event.mean and not event.grad and event.function != "argmax")
        elif isinstance(event, LengthRead) and event.loader == current and current not in training:
            mean = False
        elif isinstance(event, LengthDivides) and event.loader in training:
            if event.loader == current:
                divided = True
            elif divided and mean and sizes != event.batches:
                return [
                    Finding(
                        "batch_mean_scores",
                        Certainty.LIKELY,
                        f"The means of {sizes} batches are summed and divided by {event.batches}, the number of batches of the training's loader.",
                        event.at,
                        ("the training's own mean was taken before the evaluation began",),
                        "mean = total / len(valid_loader)",
                    )
                ]
    return []


def last_batch_score(log: Log) -> list[Finding]:
    """Detect evaluations of several batches of which the loss of the last one alone is read."""
    calls: dict[tuple[str, str], list[LastScore]] = {}
    for event in log.of(LastScore):
        calls.setdefault((event.at, event.read_at), []).append(event)
    for events in calls.values():
        batches = Counter(event.update for event in events)
        update, count = max(batches.items(), key=itemgetter(1))
        if count > 1:
            return [
                Finding(
                    "last_batch_score",
                    Certainty.LIKELY,
                    f"`{events[0].name}` is read behind the loop over {count} batches, and holds what the last one gave alone.",
                    events[0].read_at,
                    (f"set anew by each batch at {events[0].at}, and read by none, after update {update}",),
                    "total += loss.item() * len(batch)\nmean = total / len(loader.dataset)",
                )
            ]
    return []


DETECTORS = (random_validation, other_statistics, batch_mean_scores, other_length, last_batch_score)
