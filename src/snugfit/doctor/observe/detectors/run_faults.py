"""Findings on what surrounds the updates: what steps twice, what thaws, what is never drawn, and what libraries are told."""

from __future__ import annotations

import re

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe.detectors.updates.parameter_faults import named
from snugfit.doctor.observe.events.log import Log
from snugfit.doctor.observe.events.log_views import trained_models, training_loaders
from snugfit.doctor.observe.events.run_events import (
    AugmentedApart,
    BestNotNoted,
    DroppedColumn,
    FittedToAll,
    FrozenNormTrains,
    GraphOfAllEdges,
    PaddedPrompt,
    RowsInSteps,
    ScaledTogether,
    SteppedAgain,
    WindowsShared,
)
from snugfit.doctor.observe.events.state_events import Restore

_ADAPTER = re.compile(
    r"(^|[^A-Za-z])(q?lora|ia3|adapters?($|[^A-Za-z]))|L[Oo][Rr]A|Lora|(^|\.)prefix_encoder"
    r"|(^|\.)prompt_encoder\.[^.]+\.(embedding|transform|mlp_head|lstm_head)\."
)
"""The name of an adapter's parameter, not that of an `exploration`, nor of SAM's `prompt_encoder`, which is often frozen."""
LEAST_TIMES = 3
FAR_OFF = 0.1
"""Deviations between the mean of all rows and that of those which are trained on, from which it matters."""
LEAST_UPDATES = 3
LEAST_BATCH = 4


def stepped_twice(log: Log) -> list[Finding]:
    """Detect that an optimizer steps on gradients that its last step has used."""
    seen = list(log.of(SteppedAgain))
    if len(seen) < LEAST_TIMES:
        return []
    return [
        Finding(
            "stepped_twice",
            Certainty.CERTAIN,
            f"In {len(seen)} of the first updates an optimizer steps again on gradients that its last step has used.",
            seen[0].at,
            ("the gradients are the same tensors, and nothing has written to them between the steps",),
            "scaler.step(optimizer)   # calls optimizer.step() itself",
        )
    ]


def frozen_norm_trains(log: Log) -> list[Finding]:
    """Detect norms that the script froze and put into evaluation mode, and that train() puts back."""
    seen = list(log.of(FrozenNormTrains))
    if len(seen) < LEAST_TIMES:
        return []
    return [
        Finding(
            "frozen_moves",
            Certainty.LIKELY,
            f"{seen[0].name} has frozen weights and was put into evaluation mode, and train() has put it back: its statistics move.",
            seen[0].at,
            (f"in training mode in {len(seen)} updates",),
            "model.train()\nmodel.encoder.eval()   # after each train(), or in a train() of the model's own",
        )
    ]


def augmented_apart(log: Log) -> list[Finding]:
    """Detect pictures and masks that are flipped or turned by draws of their own."""
    seen = list(log.of(AugmentedApart))
    if len(seen) < LEAST_TIMES:
        return []
    return [
        Finding(
            "mismatched_rows",
            Certainty.CERTAIN,
            "Pictures and their masks are flipped or turned by draws of their own: a mask belongs to another orientation.",
            seen[0].at,
            (f"in {len(seen)} batches pictures came again in another orientation than their masks",),
            "both = transform(torch.cat([picture, mask]))   # one draw for both\npicture, mask = both[:3], both[3:]",
        )
    ]


def scaled_together(log: Log) -> list[Finding]:
    """Detect rows to train on that were scaled by the statistics of all rows, of which others are scored."""
    training = {loader.id for loader in training_loaders(log)}
    seen = list(log.of(ScaledTogether))
    for event in seen:
        others = [each for each in seen if each.storage == event.storage and each.loader not in training]
        if event.loader not in training or not others:
            continue
        far = event.shift >= FAR_OFF
        return [
            Finding(
                "leakage",
                Certainty.LIKELY if far else Certainty.WORTH_A_LOOK,
                f"All {event.rows} rows together have a mean of 0 and a deviation of 1, and some of them are held out: they were scaled with those.",
                event.at,
                (
                    f"the mean of the rows that are trained on is {event.shift:.2g} deviations away, in one column",
                ),
                "mean, std = train.mean(0), train.std(0)   # of the rows that are trained on\ntrain, test = (train - mean) / std, (test - mean) / std",
            )
        ]
    return []


def split_too_late(log: Log) -> list[Finding]:
    """Detect what is fitted to all rows before some of them are set aside, and graphs that hold the edges which are to be predicted."""
    if not log.updates:
        return []
    for fitted in log.of(FittedToAll):
        return [
            Finding(
                "leakage",
                Certainty.LIKELY,
                f"{fitted.made_by} is fitted to all rows, of which some are set aside afterwards: what it knows is of those too.",
                fitted.at,
                (f"the rows are split at {fitted.split_at}",),
                "scaler.fit(rows[:split])   # to those that are trained on\nrows = scaler.transform(rows)",
            )
        ]
    for graph in log.of(GraphOfAllEdges):
        return [
            Finding(
                "leakage",
                Certainty.LIKELY,
                f"The graph is made of all of `{graph.name}`, of which a part is set aside to be predicted: the model reads the answer.",
                graph.at,
                (f"the part is set aside at {graph.split_at}",),
                f"graph = make(train_{graph.name}, nodes)   # of those that are trained on",
            )
        ]
    return []


def shared_windows(log: Log) -> list[Finding]:
    """Detect overlapping windows of a series that were split at random: what is scored was seen but for one step."""
    training = {loader.id for loader in training_loaders(log)}
    for event in log.of(WindowsShared):
        if not event.loader or len({event.loader, event.other} & training) == 1:
            return [
                Finding(
                    "leakage",
                    Certainty.LIKELY,
                    f"{event.shared} of {event.rows} windows overlap with one on the other side of the split, but for one step: the series was cut into windows before it was split.",
                    event.at,
                    ("windows that follow each other share all of their steps but one",),
                    "train, valid = series[:cut], series[cut:]   # in time, then each into windows",
                )
            ]
    return []


def rows_left_out(log: Log) -> list[Finding]:
    """Detect rows that are never drawn: by a sampler with too few weights or rows, or by slices that begin a row after each other."""
    for event in log.of(RowsInSteps):
        return [
            Finding(
                "rows_left_out",
                Certainty.CERTAIN,
                f"Each batch of {event.size} rows begins {event.step} behind the last, and they end at row {event.end} of {event.rows}: the others are never seen.",
                event.at,
                ("the batches are slices of one table, as many as all of its rows would need",),
                "for start in range(0, len(rows), batch_size):\n    batch = rows[start : start + batch_size]",
            )
        ]
    for loader in training_loaders(log):
        if loader.left_out:
            return [
                Finding(
                    "rows_left_out",
                    Certainty.CERTAIN,
                    f"The sampler has no weight for {loader.left_out} rows, which are never drawn: weights are those of rows, not of classes.",
                    loader.at,
                    (f"data: {loader.dataset}",),
                    "WeightedRandomSampler(weight_of_class[labels], num_samples=len(labels))",
                )
            ]
    return _as_many_as_batches(log)


def _as_many_as_batches(log: Log) -> list[Finding]:
    """Return samplers that draw as many rows as there would be batches of all those which no other loader draws."""
    for loader in training_loaders(log):
        others = [
            each.drawn for each in log.loaders if each.base_id == loader.base_id and each.id != loader.id
        ]
        left = loader.whole - sum(others)
        fits = any(
            0 <= rows - loader.drawn * loader.batch_size < loader.batch_size for rows in (left, loader.whole)
        )
        if (
            fits
            and loader.counts_batches
            and loader.batch_size >= LEAST_BATCH
            and loader.drawn > 1
            and loader.sampler != "SequentialSampler"
        ):
            return [
                Finding(
                    "rows_left_out",
                    Certainty.LIKELY,
                    f"The sampler draws {loader.drawn} rows in each pass, which is the number of batches of {loader.batch_size} that the {max(left, 0)} rows would make.",
                    loader.at,
                    (
                        f"data: {loader.dataset}, {loader.whole} rows; {sum(others)} are drawn by other loaders",
                    ),
                    "sampler = SubsetRandomSampler(range(count))   # rows, not batches",
                )
            ]
    return []


def best_overwritten(log: Log) -> list[Finding]:
    """Detect a checkpoint that is written where a score beats the best one, which nothing notes."""
    by_place: dict[str, list[BestNotNoted]] = {}
    for event in log.of(BestNotNoted):
        by_place.setdefault(event.at, []).append(event)
    for at, events in by_place.items():
        if len({event.update for event in events}) > 1:
            how = (
                "set back in each pass, before it is compared with"
                if events[0].reset
                else "compared with and never set"
            )
            return [
                Finding(
                    "best_overwritten",
                    Certainty.LIKELY,
                    f"`{events[0].name}` is {how}: the checkpoint of the best is written {len(events)} times, whatever came before.",
                    at,
                    (f"first after update {events[0].update}",),
                    f"if loss < {events[0].name}:\n    {events[0].name} = loss\n    torch.save(model.state_dict(), path)",
                )
            ]
    return []


def idle_adapter(log: Log) -> list[Finding]:
    """Detect adapters in a model that trains, none of which moves."""
    for model in log.models:
        own = [each for each in log.parameters if each.model == model.id and _ADAPTER.search(each.name)]
        idle = own and not any(each.moved or each.moved_outside for each in own)
        learned = (
            own and max(each.updates for each in log.parameters if each.model == model.id) >= LEAST_UPDATES
        )
        if not idle or not learned or model.id not in trained_models(log):
            continue
        frozen = not any(each.trainable for each in own)
        learned_before = frozen and any(each.module == model.id for each in log.of(Restore))
        return [
            Finding(
                "idle_adapter",
                Certainty.WORTH_A_LOOK if learned_before else Certainty.LIKELY,
                f"None of the {len(own)} tensors of adapters moves"
                + (": they are frozen." if frozen else ", and other weights are trained."),
                model.at,
                (named(own),),
                "model = PeftModel.from_pretrained(base, path, is_trainable=True)"
                if frozen
                else "model.set_adapter(name)   # the one that forward() uses; a scale of lora_alpha / r that is not 0",
            )
        ]
    return []


def dropped_columns(log: Log) -> list[Finding]:
    """Detect columns that look like labels, or that a loss reads, and that transformers' trainer leaves out."""
    seen = list(log.of(DroppedColumn))
    if not seen:
        return []
    read = [event for event in seen if event.read]
    names = ", ".join(f"'{event.name}'" for event in read or seen)
    return [
        Finding(
            "dropped_columns",
            Certainty.CERTAIN if read else Certainty.LIKELY,
            f"The trainer leaves out {names}, which the model's forward does not take"
            + (", and compute_loss reads." if read else ", and which looks like something to learn from."),
            seen[0].at,
            ("remove_unused_columns is True by itself",),
            'TrainingArguments(..., remove_unused_columns=False)   # or label_names=["labels", ...]',
        )
    ]


def padding_side(log: Log) -> list[Finding]:
    """Detect prompts that a model goes on with behind their padding."""
    for event in log.of(PaddedPrompt):
        return [
            Finding(
                "padding_side",
                Certainty.CERTAIN,
                f"{event.padded} of {event.rows} prompts are padded on the right, and the model goes on behind the padding.",
                event.at,
                ("the model writes from left to right",),
                'tokenizer.padding_side = "left"   # to generate; to train, the side does not matter',
            )
        ]
    return []


DETECTORS = (
    stepped_twice,
    frozen_norm_trains,
    augmented_apart,
    scaled_together,
    shared_windows,
    split_too_late,
    rows_left_out,
    best_overwritten,
    idle_adapter,
    dropped_columns,
    padding_side,
)
