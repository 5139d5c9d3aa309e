"""The subject of the doctor's checks, before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from snugfit.core.batch import IGNORE_INDEX, Batch, labels_of
from snugfit.core.job import AUTO, Job, Plan
from snugfit.core.loss_terms import Loss
from snugfit.core.technique import Technique
from snugfit.data.order import total_windows
from snugfit.errors import DataError
from snugfit.step.step import Step

WINDOWS = 3
"""Windows that are trained on to see what moves: the first may have a rate of 0, or zeros in adapters."""


@dataclass(frozen=True)
class Subject:
    """A training that has not begun.

    Args:
        model: as it came; it is not changed.
        make_step: a fresh step on a copy of it.
        windows: the first of the run.
        train, validation: map-style data sets.
        pretrained: whether the weights have learned something already.
    """

    model: nn.Module
    make_step: Callable[[], Step]
    windows: tuple[Batch, ...]
    job: Job
    plan: Plan
    techniques: Sequence[Technique]
    loss: str | Loss
    train: Any
    validation: Any | None = None
    pretrained: bool = False

    @property
    def total_updates(self) -> int:
        return total_windows(self.job, self.train)

    @property
    def micro_batch(self) -> int | None:
        """Rows of a micro-batch, as far as the plan says it; None where the machine decides."""
        size = self.plan.micro_batch
        if size == AUTO:
            return None
        return min(self.window_rows, size or self.window_rows, len(self.train))

    @property
    def window_rows(self) -> int:
        """Rows of the largest window; of those that were read, where their tokens decide."""
        return self.job.train.most_examples or max(window.rows for window in self.windows)


def class_labels(window: Batch) -> Tensor | None:
    """Return the labels of a window that are classes, without those that are ignored; None where they are something else."""
    try:
        labels = labels_of(window.data)
    except DataError:
        return None
    if not isinstance(labels, Tensor) or labels.is_floating_point():
        return None
    return labels[labels != IGNORE_INDEX]


def listed(names: Sequence[str], most: int = 4) -> str:
    """Return some names, and how many more there are.

    >>> listed(["a", "b", "c"], most=2)
    "'a', 'b' and 1 more"
    """
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
