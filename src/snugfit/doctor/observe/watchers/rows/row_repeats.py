"""Repeats of rows that are trained on, by the nature of the data, as of those that are drawn from few combinations: no contents, digests alone."""

from __future__ import annotations

from collections import Counter

from torch import Tensor

MOST_VALUES = 64
"""Different numbers in a batch, beyond which rows of numbers are no combinations of a few: one that comes again was copied."""
MOST_DRAWN = 8192
"""Pieces of a text of which it is known how they begin and go on."""


class RowRepeats:
    """Counts of rows that come by twice as different rows of the training data.

    In one pass over a data set each row comes once, so that a row which comes again is another row that is the same. A piece that is drawn from a long
    text may be drawn again; but where a text does not repeat itself, what goes on behind a beginning is always the same.
    """

    def __init__(self) -> None:
        self._first_pass: dict[tuple[int, int], Counter[int]] = {}
        self._closed: set[int] = set()
        self._goes_on: dict[int, dict[int, Counter[int]]] = {}
        self._drawn: Counter[int] = Counter()

    def close(self, loader: int) -> None:
        """Note that the first pass of a loader has ended, or that it says nothing, as where rows are drawn more than once."""
        self._closed.add(loader)

    def look_at(self, loader: int, batch: Tensor) -> None:
        """Leave a loader out whose rows are of numbers that hardly meet by chance."""
        if (
            loader not in self._closed
            and batch.is_floating_point()
            and batch.detach().unique().numel() > MOST_VALUES
        ):
            self.close(loader)

    def handed(self, model: int, loader: int, rows: list[int]) -> None:
        """Count rows of a loader that a model was given to train on."""
        if loader not in self._closed:
            self._first_pass.setdefault((model, loader), Counter()).update(rows)

    def drawn(self, model: int, fronts: list[int], backs: list[int]) -> None:
        """Count the beginnings of pieces that no loader handed out, and what goes on behind each."""
        if self._drawn[model] < MOST_DRAWN and len(fronts) == len(backs):
            self._drawn[model] += len(fronts)
            known = self._goes_on.setdefault(model, {})
            for front, back in zip(fronts, backs, strict=True):
                known.setdefault(front, Counter())[back] += 1

    def share(self, model: int) -> float:
        """Return the share of a model's rows that are again elsewhere in the data: of each loader the least, 0 where it is not known."""
        shares = [
            sum(times for times in counts.values() if times > 1) / counts.total()
            for (of, _), counts in self._first_pass.items()
            if of == model and counts
        ]
        backs = self._goes_on.get(model, {})
        if backs:
            again = sum(each.total() for each in backs.values() if len(each) > 1)
            shares.append(again / sum(each.total() for each in backs.values()))
        return min(shares, default=0.0)
