"""Evaluation: example-weighted loss and metrics, under the weights that will be saved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch, labels_of, split
from snugfit.core.head import whole
from snugfit.core.losses import IGNORE_INDEX, Loss, LossTerms, logits_of
from snugfit.core.memory import is_out_of_memory, release_memory
from snugfit.core.phases import phase
from snugfit.core.random import preserved_randomness
from snugfit.core.read import read
from snugfit.core.technique import BatchLoss
from snugfit.core.tree import joined
from snugfit.errors import MissingExtra, OutOfMemory, SettingError, nearest
from snugfit.training.fit import Replan, first_line, sizes
from snugfit.training.step import Step

RowMetric = Callable[[Any, Any], Tensor]
"""A user's metric: `(outputs, data) -> one value a row`; its mean over the rows is reported."""


class Metric(Protocol):
    def update(self, outputs: Any, part: Batch) -> None: ...

    def compute(self) -> float: ...


@dataclass(frozen=True)
class Scored:
    """A model to evaluate: how a batch is run through it and scored, and the contexts around that."""

    model: nn.Module
    device: torch.device
    run: Callable[[Batch], Any]
    loss: BatchLoss
    forward: Callable[[Batch], AbstractContextManager[Any]] = lambda batch: nullcontext()
    weights: Callable[[nn.Module], AbstractContextManager[Any]] = nullcontext
    micro_batch: int | None = None
    couples_rows: bool = False

    @classmethod
    def of(cls, step: Step) -> Scored:
        """The model of a step, with the user's own loss: what techniques add to it is not part of the score."""
        seams = step.seams
        return cls(
            step.model,
            step.device,
            step.forward,
            seams.user_loss,
            seams.forward,
            seams.weights,
            step.micro_batch,
            step.couples_rows,
        )


def evaluate(
    scored: Scored,
    batches: Iterable[Batch],
    metrics: Mapping[str, str | RowMetric],
    tell: Callable[[Replan], None] = lambda replan: None,
) -> dict[str, float]:
    """Loss and metrics over all rows of `batches`, each row (or token) counted once.

    The model is in eval mode and has the weights that the techniques say are to be evaluated; mode, weights and
    global random state are as before on return. Rows that run out of memory are run again, fewer at a time from then on.

    Args:
        tell: is told that they are.
    Raises:
        SettingError: an unknown metric, or one that does not fit the outputs.
        OutOfMemory: a single row is too much.
    """
    made = {name: _make(metric) for name, metric in metrics.items() if metric != "perplexity"}
    sums: list[Tensor] = []
    weights: list[Tensor] = []
    model, device = scored.model, scored.device
    with (
        phase("evaluation"),
        torch.no_grad(),
        preserved_randomness(device),
        eval_mode(model),
        scored.weights(model),
    ):
        for part, outputs, terms in _scored_parts(scored, batches, keep=bool(made), tell=tell):
            # in float64: the sum of many batches must not depend on how they were cut
            sums.append(terms.weighted_sum().double())
            weights.append(torch.as_tensor(terms.weight(), dtype=torch.float64, device=device))
            for metric in made.values():
                metric.update(outputs, part)
    if not sums:
        raise SettingError("evaluate: the data holds no rows.")
    total, weight = read(
        torch.stack([torch.stack(sums).sum(), torch.stack(weights).sum()]), assume=[0.0, 1.0]
    )
    found = {"loss": total / weight if weight > 0 else math.nan}
    for name in metrics:
        found[name] = made[name].compute() if name in made else perplexity(found["loss"])
    return found


def _scored_parts(
    scored: Scored, batches: Iterable[Batch], *, keep: bool, tell: Callable[[Replan], None]
) -> Iterator[tuple[Batch, Any, LossTerms]]:
    """Micro-batches, their outputs (None unless `keep`) and losses; all rows of a batch as one where the loss compares them,
    so that no plan changes the score."""
    micro_batch = scored.micro_batch
    for batch in batches:
        start, found = 0, []
        while start < batch.rows:
            count = len(split(batch.rows - start, micro_batch)[0])
            rows = range(start, start + count)
            try:
                part, outputs, terms = _score(scored, batch.select(rows), keep)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                reason = first_line(error)
            else:
                if terms is None:
                    found.append(outputs)
                else:
                    yield part, outputs, terms
                start += count
                continue
            release_memory(scored.device)  # behind the handler, where the error holds nothing any more
            replan = _finer(count, reason)
            micro_batch = replan.after
            tell(replan)
        if found:
            part = batch.to(scored.device)
            with scored.forward(part):
                outputs = joined(found)
                terms = scored.loss(outputs, part)
                outputs = whole(outputs) if keep else None
            yield part, outputs, terms


def _score(scored: Scored, part: Batch, keep: bool) -> tuple[Batch, Any, LossTerms | None]:
    """The outputs of some rows and, where it does not compare rows, their loss."""
    part = part.to(scored.device)
    with scored.forward(part):
        outputs = scored.run(part)
        if scored.couples_rows:
            return part, outputs, None
        terms = scored.loss(outputs, part)
        return part, whole(outputs) if keep else None, terms


def _finer(rows: int, reason: str) -> Replan:
    if rows == 1:
        raise OutOfMemory(
            f"evaluate.batch: memory ran out in scoring a single example ({reason}). Give smaller examples, or a smaller model."
        )
    return Replan(rows, sizes(rows)[1], reason)


def perplexity(loss: float) -> float:
    """exp(loss), infinite where that overflows.

    >>> perplexity(0.0), perplexity(1e4)
    (1.0, inf)
    """
    return math.exp(loss) if loss < 700 else math.inf


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Within, the model is in eval mode; on exit each module is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@dataclass
class _RowMean:
    """The mean of a user's row metric."""

    function: RowMetric
    total: float = 0.0
    rows: int = 0

    def update(self, outputs: Any, part: Batch) -> None:
        values = self.function(outputs, part.data)
        if not isinstance(values, Tensor) or values.shape != (part.rows,):
            found = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
            raise SettingError(
                f"evaluate.metrics: {getattr(self.function, '__name__', 'a metric')} returned {found} for {part.rows} rows. "
                "Return one value a row, shape (rows,): Snugfit takes the mean over all rows."
            )
        self.total += read(values.double().sum(), assume=0.0)
        self.rows += part.rows

    def compute(self) -> float:
        return self.total / self.rows


class _Classification:
    """A torchmetrics classification metric over all labels that are not ignored."""

    def __init__(self, class_name: str, **settings: Any) -> None:
        self._class_name, self._settings = class_name, settings
        self._metric: Any = None

    def update(self, outputs: Any, part: Batch) -> None:
        logits, labels = logits_of(outputs), labels_of(part.data)
        if labels.dtype.is_floating_point:
            raise SettingError(
                "evaluate.metrics: accuracy and macro_f1 need integer labels. Use mse or mae, or for soft "
                "labels a metric of your own."
            )
        if logits.shape[:-1] != labels.shape or logits.shape[-1] < 2:
            raise SettingError(
                f"evaluate.metrics: accuracy and macro_f1 need a logit for each of two or more classes, found outputs of "
                f"shape {tuple(logits.shape)} for labels of shape {tuple(labels.shape)}."
            )
        if self._metric is None:
            metric = getattr(import_module("torchmetrics.classification"), self._class_name)
            self._metric = metric(num_classes=logits.shape[-1], ignore_index=IGNORE_INDEX, **self._settings)
            self._metric.to(logits.device)
        self._metric.update(logits.argmax(dim=-1).flatten(), labels.flatten())

    def compute(self) -> float:
        return float(self._metric.compute())


class _Regression:
    def __init__(self, class_name: str) -> None:
        self._metric = getattr(import_module("torchmetrics.regression"), class_name)()

    def update(self, outputs: Any, part: Batch) -> None:
        labels = labels_of(part.data)
        prediction = logits_of(outputs).reshape(labels.shape).float()
        self._metric.to(labels.device).update(prediction, labels.float())

    def compute(self) -> float:
        return float(self._metric.compute())


METRICS: Mapping[str, Callable[[], Metric]] = {
    "accuracy": lambda: _Classification("MulticlassAccuracy", average="micro"),
    "macro_f1": lambda: _Classification("MulticlassF1Score", average="macro"),
    "mse": lambda: _Regression("MeanSquaredError"),
    "mae": lambda: _Regression("MeanAbsoluteError"),
}


def check_metrics(names: Iterable[str]) -> None:
    """Refuse unknown metrics before anything is trained.

    Raises:
        SettingError: an unknown one; the nearest known name is given.
        MissingExtra: it needs a package that is not installed.
    """
    known = ["perplexity", *METRICS]
    for name in names:
        if name not in known:
            raise SettingError(f"evaluate.metrics: no metric '{name}'. {nearest(name, known)}")
        if name in METRICS and find_spec("torchmetrics") is None:  # to be said now, not after an epoch
            raise MissingExtra("torchmetrics", "metrics")


def check_fit(metrics: Iterable[str | RowMetric], loss: str | Loss) -> None:
    """Refuse metrics that would give a number without a meaning.

    Raises:
        SettingError: names the metric and the loss.
    """
    for metric in metrics:
        if loss == "causal_lm" and isinstance(metric, str) and metric != "perplexity":
            raise SettingError(
                f"evaluate.metrics: {metric} compares each output with the label at its place, and causal_lm predicts the "
                "next one. Use perplexity, or a metric of your own."
            )
        if loss == "mse" and metric == "perplexity":
            raise SettingError(
                "evaluate.metrics: perplexity is of a cross-entropy, and the loss is mse. Use mae."
            )


def _make(metric: str | RowMetric) -> Metric:
    if callable(metric):
        return _RowMean(metric)
    check_metrics([metric])
    return METRICS[metric]()
