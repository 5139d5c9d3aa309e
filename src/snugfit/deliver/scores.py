"""Scores of labelled rows, and of the answers that a language model writes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.core.batch import IGNORE_INDEX
from snugfit.data.loader import Loader
from snugfit.data.order import Order
from snugfit.errors import SettingError
from snugfit.kit.metric_directions import is_of_class
from snugfit.step.evaluate import evaluate
from snugfit.step.metrics.metric import made_metrics, named_metrics
from snugfit.step.metrics.text_metrics import OfWrittenTexts, text_scores

if TYPE_CHECKING:
    from snugfit.data.files.file_rows import FileRows
    from snugfit.deliver.predictor import Predictor
    from snugfit.step.evaluate import RowObserver
    from snugfit.step.metrics.metric import RowMetric


def scores_of(
    predictor: Predictor,
    rows: FileRows,
    metrics: Sequence[str] | Mapping[str, str | RowMetric],
    most: int | None = None,
    *,
    planned: bool = False,
    observer: RowObserver | None = None,
) -> dict[str, float]:
    """Return loss and metrics on labelled rows, the first ones where there are more than are asked for.

    Args:
        metrics: names, or functions of one's own by name; those of the task where there are none.
        planned: whether the memory of scores is, beside which none is left for answers.
        observer: looks on while rows are scored.
    Raises:
        SettingError: it is, and a metric is of written answers.
    """
    count = len(rows.examples) if most is None else min(most, len(rows.examples))
    order = Order(len(rows.examples), predictor.rows, shuffle=False)
    windows = Loader(rows.examples, order, rows.collate).windows(0, math.ceil(count / predictor.rows))
    named = metrics
    if not isinstance(named, Mapping) or not named:
        named = named_metrics(named or predictor.inference.metrics, "metrics", Path.cwd())
    classes = predictor.inference.classes or predictor.meta.get("labels") or ()
    made = made_metrics(named, predictor.inference.own_metrics, classes)
    answered: dict[str, OfWrittenTexts] = {}
    if predictor.inference.forward is None:  # of a model whose answers go on with their prompts
        answered = {name: metric for name, metric in made.items() if isinstance(metric, OfWrittenTexts)}
    if planned and answered:
        raise SettingError(
            "memory",
            f"is planned for scores, and {', '.join(answered)} is of answers that are written",
            "Leave one out; snugfit generate --memory writes answers.",
        )
    scored = {name: metric for name, metric in made.items() if name not in answered}
    scores = evaluate(predictor.scored(), windows, scored, observer=observer)
    scores |= _scores_of_answers(predictor, [rows.examples[place] for place in range(count)], answered)
    ordered = {name: scores[name] for name in ("loss", *made)}
    return {**ordered, **{name: value for name, value in scores.items() if is_of_class(name, made)}}


def _scores_of_answers(
    predictor: Predictor, examples: Sequence[Mapping[str, Any]], metrics: Mapping[str, OfWrittenTexts]
) -> dict[str, float]:
    """Return metrics of the answers that a model writes, beside the last answer that each example has."""
    if not metrics:
        return {}
    prompts, targets = zip(*map(_last_answer, examples), strict=True)
    column = predictor.inference.columns[0]
    written = [str(each[column]) for each in predictor.predict_examples(list(prompts))]
    return text_scores(list(zip(written, targets, strict=True)), metrics)


def _last_answer(example: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """Return the tokens before the last answer of an example, and that answer.

    >>> _last_answer({"input_ids": [1, 2, 3, 4, 5], "labels": [-100, 2, -100, 4, -100]})
    ([1, 2, 3], [4])
    """
    ids, labels = list(example["input_ids"]), list(example["labels"])
    end = max((place + 1 for place, label in enumerate(labels) if label != IGNORE_INDEX), default=0)
    start = max((place + 1 for place in range(end) if labels[place] == IGNORE_INDEX), default=0)
    return ids[:start], ids[start:end]
