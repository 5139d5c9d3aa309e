"""Entities, which are spans of tagged words: those that a model's outputs mean, and how many of them are right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from snugfit.data.texts.tags import OUTSIDE, Scheme, spans_of
from snugfit.tasks.inference import Prediction

if TYPE_CHECKING:
    from torch import Tensor, nn

    from snugfit.data.texts.tagged_texts import RowWindows
    from snugfit.step.metrics.metric import RowMetric

_WINDOWS = 32
"""So many windows of a text are run at once, however long it is."""


def entity_metrics(names: Sequence[str], scheme: Scheme) -> Mapping[str, RowMetric]:
    """Return the metrics of entities, of which one is right that has the same words and the same label.

    An entity that is predicted where two windows of a text meet counts as its two parts.

    Args:
        names: of the tags, by their classes.
    Source: Tjong Kim Sang and De Meulder 2003, the evaluation of CoNLL, as seqeval computes it: the sums over all labels.
    """
    from snugfit.step.metrics.all_rows_metrics import OverAllRows

    def metric(of_counts: Callable[[int, int, int], float]) -> OverAllRows:
        return OverAllRows(partial(_score, tuple(names), scheme, of_counts), _best)

    return {
        "entity_f1": metric(lambda right, predicted, true: _ratio(2 * right, predicted + true)),
        "entity_precision": metric(lambda right, predicted, _true: _ratio(right, predicted)),
        "entity_recall": metric(lambda right, _predicted, true: _ratio(right, true)),
    }


def most_likely_tags(model: nn.Module, batch: Any, _places: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the class of each token of windows and its probability, each of shape (windows, tokens)."""
    import torch

    from snugfit.core.batch import inputs_of
    from snugfit.core.losses import logits_of

    _, inputs = inputs_of(batch)
    classes: list[Tensor] = []
    probabilities: list[Tensor] = []
    for start in range(0, len(inputs["input_ids"]), _WINDOWS):
        part = {name: values[start : start + _WINDOWS] for name, values in inputs.items()}
        highest = logits_of(model(**part)).float().softmax(dim=-1).max(dim=-1)
        classes.append(highest.indices)
        probabilities.append(highest.values)
    return torch.cat(classes), torch.cat(probabilities)


def predictions_of(
    names: Sequence[str],
    scheme: Scheme,
    with_tags: bool,
    outputs: tuple[Tensor, Tensor],
    rows: Sequence[RowWindows],
) -> list[Prediction]:
    """Return the entities of each text, and the tags of its words where they are asked for.

    An entity has `start` and `end`, in characters of a text or in words of a list, its `label`, its `text`, and as `score` the mean
    probability of its words' tags.

    Args:
        outputs: classes and their probabilities, of all windows of all rows in order.
    """
    from snugfit.core.scalar_reads import read

    count = sum(len(row.windows) for row in rows)
    classes, probabilities = (read(each, assume=[[0]] * count) for each in outputs)
    predictions: list[Prediction] = []
    window = 0
    for row in rows:
        tags, scores = [OUTSIDE] * len(row.words), [1.0] * len(row.words)
        for each in row.windows:
            for word, place in each.places.items():
                tags[word], scores[word] = names[classes[window][place]], probabilities[window][place]
            window += 1
        entities = [_entity(row, start, end, label, scores) for start, end, label in spans_of(tags, scheme)]
        predictions.append({"prediction": entities, **({"predicted_tags": tags} if with_tags else {})})
    return predictions


def _entity(row: RowWindows, start: int, end: int, label: str, scores: Sequence[float]) -> dict[str, Any]:
    first, last = row.words[start].start, row.words[end - 1].end
    return {
        "start": start if row.listed else first,
        "end": end if row.listed else last,
        "label": label,
        "text": row.text[first:last],
        "score": round(sum(scores[start:end]) / (end - start), 6),
    }


def _best(logits: Tensor) -> Tensor:
    return logits.argmax(dim=-1)


def _score(
    names: tuple[str, ...],
    scheme: Scheme,
    of_counts: Callable[[int, int, int], float],
    classes: Tensor,
    labels: Tensor,
) -> float:
    from snugfit.core.losses import IGNORE_INDEX
    from snugfit.core.scalar_reads import read

    nothing: list[list[int]] = []
    right = predicted = true = 0
    rows = zip(read(classes.long(), assume=nothing), read(labels, assume=nothing), strict=True)
    for own, wanted in rows:
        places = [place for place, label in enumerate(wanted) if label != IGNORE_INDEX]
        of_row = [set(spans_of([names[each[place]] for place in places], scheme)) for each in (own, wanted)]
        right += len(of_row[0] & of_row[1])
        predicted += len(of_row[0])
        true += len(of_row[1])
    return of_counts(right, predicted, true)


def _ratio(part: int, whole: int) -> float:
    """Return 0 of nothing, as seqeval does."""
    return part / whole if whole else 0.0
