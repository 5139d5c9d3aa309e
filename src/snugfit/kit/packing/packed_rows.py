"""Several examples in one row: where each token of a padded batch stands in the packed one, and the way back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from snugfit.system.device_copies import values_on

_packed_rows: ContextVar[int | None] = ContextVar("packed_rows", default=None)


@contextmanager
def computing_rows(rows: int) -> Iterator[None]:
    """Temporarily count modules' computations as of so many packed rows."""
    token = _packed_rows.set(rows)
    try:
        yield
    finally:
        _packed_rows.reset(token)


def rows_of(batch_rows: int) -> int:
    """Return how many rows modules compute at present, for a batch of `batch_rows`.

    >>> with computing_rows(2):
    ...     rows_of(5)
    2
    >>> rows_of(5)
    5
    """
    packed = _packed_rows.get()
    return batch_rows if packed is None else packed


def first_fit(lengths: Sequence[int], width: int) -> list[list[int]]:
    """Return rows of at most `width` tokens, each with the examples in it: the longest first, each into the first row it fits in.

    Source: first-fit decreasing, at most 11/9 of the fewest rows possible (Johnson 1973).

    >>> first_fit([2, 9, 3, 4], width=9)
    [[1], [3, 2, 0]]
    """
    rows: list[list[int]] = []
    left: list[int] = []
    for example in sorted(range(len(lengths)), key=lambda example: -lengths[example]):
        place = next((row for row, room in enumerate(left) if room >= lengths[example]), len(rows))
        if place == len(rows):
            rows.append([])
            left.append(width)
        rows[place].append(example)
        left[place] -= lengths[example]
    return rows


@dataclass(frozen=True)
class Packed:
    """The layout of a batch of padded examples, shape (examples, tokens), in packed rows, shape (rows, width).

    `positions` count from 0 in each example, shape (rows, width); `segments` says whose a token is, likewise: the place of the
    example in its row. What is left of a row is an example of its own, of which nobody takes the result. `offsets` say where each of
    them begins in the rows laid end to end, and where the last one ends, in int32; `longest` is the length of the longest one.
    """

    examples: int
    tokens: int
    rows: tuple[tuple[int, ...], ...]
    width: int
    positions: Tensor
    segments: Tensor
    offsets: Tensor
    longest: int
    _padded_places: Tensor
    _packed_places: Tensor

    @classmethod
    def of(cls, lengths: Sequence[int], tokens: int, device: torch.device, one_row: bool = False) -> Packed:
        """Return the layout of examples that are padded on the right.

        Args:
            one_row: all in one row, however long; else in rows as long as the longest example.
        """
        width = sum(lengths) if one_row else max(lengths)
        rows = first_fit(lengths, width)
        padded: list[int] = []
        packed: list[int] = []
        positions: list[list[int]] = []
        segments: list[list[int]] = []
        spans: list[int] = []
        for row, examples in enumerate(rows):
            own = [lengths[example] for example in examples]
            for example in examples:
                start = row * width + sum(lengths[earlier] for earlier in examples[: examples.index(example)])
                padded += range(example * tokens, example * tokens + lengths[example])
                packed += range(start, start + lengths[example])
            parts = [*own, width - sum(own)]
            positions.append([place for length in parts for place in range(length)])
            segments.append([segment for segment, length in enumerate(parts) for _ in range(length)])
            spans += filter(None, parts)
        offsets = values_on([0, *itertools.accumulate(spans)], device, torch.int32)
        places, names, *ways = (values_on(each, device) for each in (positions, segments, padded, packed))
        return cls(
            len(lengths), tokens, tuple(map(tuple, rows)), width, places, names, offsets, max(spans), *ways
        )

    def pack(self, tensor: Tensor) -> Tensor:
        """Return a tensor (examples, tokens, ...) as (rows, width, ...), with zeros in what is left of a row."""
        flat = tensor.flatten(0, 1).index_select(0, self._padded_places)
        made = flat.new_zeros((len(self.rows) * self.width, *flat.shape[1:]))
        return made.index_copy(0, self._packed_places, flat).view(len(self.rows), self.width, *flat.shape[1:])

    def unpack(self, tensor: Tensor) -> Tensor:
        """Return a tensor (rows, width, ...) as (examples, tokens, ...), with zeros at the padding."""
        flat = tensor.flatten(0, 1).index_select(0, self._packed_places)
        made = flat.new_zeros((self.examples * self.tokens, *flat.shape[1:]))
        return made.index_copy(0, self._padded_places, flat).view(self.examples, self.tokens, *flat.shape[1:])

    def is_packed(self, tensor: Tensor) -> bool:
        """Return whether it has one entry for each place of the packed rows."""
        return tensor.shape[:2] == (len(self.rows), self.width)

    def same_example(self) -> Tensor:
        """Who may attend to whom: True within an example, shape (rows, width, width)."""
        return self.segments.unsqueeze(2) == self.segments.unsqueeze(1)
