"""Examples that stand for a data set that is not there yet, all of them as long as an example may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from snugfit.data.sizes import token_counts
from snugfit.data.texts.token_rows import Example
from snugfit.data.texts.tokens import PadRight

WINDOWS_PER_EPOCH = 10_000
"""So many that no warm-up is longer than the run."""

collate_alike = PadRight({})


@dataclass(frozen=True)
class Alike(Sequence[Example]):
    """An example, repeated.

    >>> data = Alike({"input_ids": [0, 0]}, 3)
    >>> len(data), data[2]
    (3, {'input_ids': [0, 0]})
    """

    example: Example
    times: int

    def __len__(self) -> int:
        return self.times

    @property
    def lengths(self) -> list[int] | None:
        """The tokens of each example; None where it has none."""
        counts = token_counts([self.example])
        return None if counts is None else counts * self.times

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | Sequence[Example]:
        if isinstance(index, slice):
            return Alike(self.example, len(range(*index.indices(self.times))))
        if not -self.times <= index < self.times:
            raise IndexError(index)
        return self.example


def assumed_text(max_length: int, global_batch: int, *, classes: bool) -> Alike:
    """Examples of `max_length` tokens, none of them padding and all of them scored.

    Args:
        global_batch: examples of one update; there are enough for any schedule.
        classes: whether an example has one label, or each of its tokens.

    >>> assumed_text(2, 8, classes=False)[0]
    {'input_ids': [0, 0], 'attention_mask': [1, 1], 'labels': [0, 0]}
    """
    tokens = [0] * max_length
    example = {
        "input_ids": tokens,
        "attention_mask": [1] * max_length,
        "labels": 0 if classes else list(tokens),
    }
    return Alike(example, WINDOWS_PER_EPOCH * global_batch)


def assumed_pairs(max_length: int, global_batch: int, *, labelled: bool) -> Alike:
    """Examples of two sequences of `max_length` tokens, all of them scored.

    Args:
        labelled: whether they are single answers with a label.

    >>> assumed_pairs(2, 8, labelled=True)[0]
    {'input_ids': [[0, 0], [0, 0]], 'labels': [[0, 0], [0, 0]], 'desirable': True}
    """
    tokens = [[0] * max_length] * 2
    example: Example = {"input_ids": tokens, "labels": tokens, **({"desirable": True} if labelled else {})}
    return Alike(example, WINDOWS_PER_EPOCH * global_batch)
