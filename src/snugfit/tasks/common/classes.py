"""The classes that a row is most likely of, or the labels that it is likely to have, by a model's logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from snugfit.tasks.inference import Inference, Prediction


def most_likely(
    classes: Sequence[Any], outputs: Any, examples: Sequence[Any], *, top: int = 1, every: bool = False
) -> list[Prediction]:
    """Return a prediction (the class) and its probability for each row of logits, shape (rows, classes).

    Args:
        top: so many classes, the likeliest first; of equal ones the first.
        every: the probability of each class too.
    """
    from snugfit.core.losses import logits_of
    from snugfit.core.scalar_reads import read

    probabilities = logits_of(outputs).float().softmax(dim=-1)
    order = probabilities.sort(dim=-1, descending=True, stable=True)
    top = min(top, len(classes))
    nothing = [[0] * top] * len(examples)
    places = read(order.indices[:, :top], assume=nothing)
    highest = read(order.values[:, :top], assume=nothing)
    predictions: list[Prediction] = []
    for row, values in zip(places, highest, strict=True):
        prediction: Prediction = {}
        for (name, probability), place, value in zip(_columns(top), row, values, strict=True):
            prediction |= {name: classes[place], probability: value}
        predictions.append(prediction)
    if every:
        for prediction, values in zip(predictions, read(probabilities, assume=nothing), strict=True):
            prediction |= dict(zip(_each(classes), values, strict=True))
    return predictions


def likely_labels(
    classes: Sequence[Any], threshold: float, outputs: Any, examples: Sequence[Any]
) -> list[Prediction]:
    """Return the labels of each row whose probability is at least the threshold, in their order, and the probability of each label."""
    from snugfit.core.losses import logits_of
    from snugfit.core.scalar_reads import read
    from snugfit.step.metrics.label_metrics import are_predicted

    logits = logits_of(outputs)
    nothing = [[0] * len(classes)] * len(examples)
    present = read(are_predicted(logits, threshold), assume=nothing)
    probabilities = read(logits.float().sigmoid(), assume=nothing)
    return [
        {
            "prediction": [name for name, one in zip(classes, row, strict=True) if one],
            **dict(zip(_each(classes), values, strict=True)),
        }
        for row, values in zip(present, probabilities, strict=True)
    ]


def columns_of_labels(classes: Sequence[Any]) -> tuple[str, ...]:
    """Return names of what `likely_labels` gives for a row."""
    return ("prediction", *_each(classes))


def of_label_sets(use: Inference, meta: Mapping[str, Any], metrics: tuple[str, ...]) -> Inference:
    """Return the use of a model that tells any number of labels with its loss and its metrics.

    Args:
        meta: what is kept with it: `labels` and `threshold`.
        metrics: names of those that score it.
    """
    from snugfit.core.losses import binary_cross_entropy
    from snugfit.step.metrics.label_metrics import label_set_metrics

    return replace(
        use,
        classes=tuple(meta["labels"]),
        any_number=True,
        loss=binary_cross_entropy,
        metrics=metrics,
        own_metrics=label_set_metrics(meta["threshold"]),
    )


def in_detail(use: Inference, *, top: int = 1, every: bool = False) -> Inference:
    """Return the use of a classifier with more in its predictions; the arguments are those of `most_likely`."""
    if use.any_number:  # each probability is there already
        return use
    columns = [name for pair in _columns(min(top, len(use.classes))) for name in pair]
    return replace(
        use,
        decode=partial(most_likely, use.classes, top=top, every=every),
        columns=(*columns, *(_each(use.classes) if every else ())),
    )


def _columns(top: int) -> list[tuple[str, str]]:
    """Return names for the classes of a row and for their probabilities.

    >>> _columns(2)
    [('prediction', 'probability'), ('prediction_2', 'probability_2')]
    """
    return [
        (f"prediction{suffix}", f"probability{suffix}")
        for suffix in ("", *(f"_{place}" for place in range(2, top + 1)))
    ]


def _each(classes: Sequence[Any]) -> list[str]:
    return [f"probability of {name}" for name in classes]
