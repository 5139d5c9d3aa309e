"""The comparison of what another library gives for example rows with what was scored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from snugfit.errors import ModelError
from snugfit.units import counted

EXACT = 1e-4
"""Difference, in parts of the spread of the logits, that other kernels make in float32."""


@dataclass(frozen=True)
class Comparison:
    """The result of reading an export back.

    Args:
        reader: library and version.
        rows: that were compared.
        difference: root of the mean square of the differences of the logits, in parts of their spread; None where logits were not read.
        largest: difference of two logits.
        rounding: the same as `difference`, of what the rounding of the weights alone makes; None where nothing is rounded.
        answers: how many of the greedy answers are equal, of how many.
        checked: what else was compared and is equal, in words.
        problem: why the export is not what was scored; None where it is.
        lost: by quantising anew: nats a token or a row, the mean divergence from what was scored.
    """

    reader: str
    rows: int
    difference: float | None = None
    largest: float | None = None
    rounding: float | None = None
    answers: tuple[int, int] | None = None
    checked: tuple[str, ...] = ()
    problem: str | None = None
    lost: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return what there is to say of it, for programs."""
        values = {
            "rows": self.rows,
            "difference": self.difference,
            "largest": self.largest,
            "rounding": self.rounding,
            "lost_nats": self.lost,
            "answers": None if self.answers is None else "{} of {} equal".format(*self.answers),
            "equal": list(self.checked),
        }
        return {"reader": self.reader, **{name: value for name, value in values.items() if value is not None}}

    def in_words(self) -> str:
        """Return one sentence for people.

        >>> Comparison("onnxruntime 1.32.0", 8, 2e-7, 1e-6).in_words()
        'onnxruntime 1.32.0, 8 rows: logits differ by 2e-07 of their spread (largest difference 1e-06)'
        """
        parts = []
        if self.difference is not None:
            rounding = "" if self.rounding is None else f", of which rounding makes {self.rounding:.2g}"
            parts.append(
                f"logits differ by {self.difference:.2g} of their spread{rounding} (largest difference {self.largest:.2g})"
            )
        if self.lost is not None:
            parts.append(f"quantising loses {self.lost:.3g} nats a prediction")
        if self.answers is not None:
            parts.append("{} of {} greedy answers are equal".format(*self.answers))
        if self.checked:
            parts.append(f"equal are {', '.join(self.checked)}")
        return f"{self.reader}, {counted(self.rows, 'row')}: {'; '.join(parts)}"


def differences(scored: Sequence[Tensor], given: Sequence[Tensor]) -> tuple[float, float]:
    """Return the difference of logits in parts of their spread, and the largest one; infinity where shapes or numbers are none to compare.

    The spread is that of the classes of one place about their mean, so that a constant which all of them have makes none.

    >>> from torch import tensor
    >>> differences([tensor([[9.0, 7.0]])], [tensor([[9.0, 6.5]])])
    (0.353..., 0.5)
    """
    if [each.shape for each in scored] != [each.shape for each in given]:
        return math.inf, math.inf
    squares = spread = largest = 0.0
    for own, other in zip(scored, given, strict=True):
        own, other = own.double(), other.double()
        off = own - other
        centred = own - own.mean(dim=-1, keepdim=True) if own.shape[-1] > 1 else own
        squares += float(off.square().sum())
        spread += float(centred.square().sum())
        largest = max(largest, float(off.abs().max()) if off.numel() else 0.0)
    ratio = math.sqrt(squares / spread) if spread else (math.inf if squares else 0.0)
    return (ratio, largest) if math.isfinite(ratio) else (math.inf, math.inf)


def check(comparisons: Sequence[Comparison], output: str) -> None:
    """Refuse an export that is not what was scored.

    Raises:
        ModelError: names the figure.
    """
    for comparison in comparisons:
        if comparison.problem is not None:
            raise ModelError(
                output,
                f"was not delivered: read back by {comparison.reader}, {comparison.problem}",
                "Take another format or wider numbers; a report of this with the model's configuration helps.",
            )
