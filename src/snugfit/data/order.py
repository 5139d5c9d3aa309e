"""The order of examples: which of them are in which window, a pure function of (seed, epoch)."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from snugfit.core.job import Job, Train
from snugfit.core.random import derive_seed
from snugfit.core.windows import Cuts, Sizes, Sums
from snugfit.data.examples import origin_of
from snugfit.data.mixture import Draws, mixed
from snugfit.data.sizes import token_counts
from snugfit.data.stream import streamed
from snugfit.errors import DataError, SettingError

Key = tuple[int, int]
"""An example's epoch and index; of a mixture the pass over its source in place of the epoch, as a row may come twice in one."""

_CACHED_EPOCHS = 8
_CACHED_BYTES = 1 << 26


class Order:
    """The order of examples: each epoch a permutation of (seed, epoch), cut in windows.

    Args:
        global_batch: examples of a window, or where epochs are cut into windows that differ in size.
        windows: of the run.
        lengths: tokens of each example, where windows are cut by them.
        draws: the examples of each epoch, where they are not all, once each.

    >>> order = Order(examples=5, global_batch=2, seed=0, shuffle=False)
    >>> [order.window(number) for number in range(4)]
    [[(0, 0), (0, 1)], [(0, 2), (0, 3)], [(0, 4)], [(1, 0), (1, 1)]]
    """

    def __init__(
        self,
        examples: int,
        global_batch: int | Cuts,
        seed: int = 0,
        shuffle: bool = True,
        *,
        windows: int = 1,
        lengths: Sequence[int] | None = None,
        draws: Draws | None = None,
    ) -> None:
        if examples < 1:
            raise DataError("data", "no examples to train on", "Give at least one.")
        self.examples, self.seed, self.shuffle = examples, seed, shuffle
        self.cuts = global_batch if isinstance(global_batch, Cuts) else Cuts(examples, Sizes(global_batch))
        self.windows, self.lengths, self.draws = windows, lengths, draws
        self._epoch = -1
        self._keys: tuple[Sequence[int], Sequence[int]] = ((), ())
        self._rows: torch.Tensor | None = None

    @property
    def windows_per_pass(self) -> int:
        """Windows of the first pass over the examples; of each, where all windows are of one size."""
        return self.cuts.windows_in(0)

    def window(self, number: int) -> list[Key]:
        """Keys of the examples of window `number`, counted from the start of the run."""
        if self._in_order:
            epoch, start, end = self.cuts.place(number)
            return [(epoch, index) for index in range(start, end)]
        _, start, end = self._place(number)
        passes, indices = (numbers[start:end] for numbers in self._keys)
        return list(zip(passes, indices, strict=True))

    @property
    def _in_order(self) -> bool:
        """True where keys count up: of a long stream nobody lists them."""
        return self.draws is None and not self.shuffle

    def rows(self, number: int) -> tuple[list[int], torch.Tensor]:
        """Return the indices of the examples of window `number`, and the same as a tensor."""
        _, start, end = self._place(number)
        _, indices = self._keys
        if self._rows is None:
            self._rows = torch.tensor(indices)
        return list(indices[start:end]), self._rows[start:end]

    def _place(self, number: int) -> tuple[int, int, int]:
        """Return the epoch of a window and its place in the epoch's order, which is at hand from then on."""
        place = self.cuts.place(number)
        if place[0] != self._epoch:
            self._epoch, self._rows = place[0], None
            self._keys = _keys(self.examples, self.seed, self._epoch, self.shuffle, self.draws)
        return place

    def largest_window(self) -> list[Key]:
        """Return the keys of the run's largest window.

        It is the first with the most examples. Where windows are in tokens, it is the last of those that padding makes the largest, its
        examples by their length; in place of its longest example it has the longest of all.
        """
        lengths = self.lengths
        if lengths is None:
            return self.window(self.cuts.largest(self.windows))
        by_length = sorted(self.window(self._most_padded(lengths)), key=lambda key: -lengths[key[1]])
        longest = max(range(len(lengths)), key=lengths.__getitem__)
        return [(0, longest), *by_length[1:]]

    def mean_length(self) -> float:
        """Return the tokens of the mean example of the first epoch, where windows are in tokens."""
        assert self.lengths is not None
        _, indices = _keys(self.examples, self.seed, 0, self.shuffle, self.draws)
        return sum(map(self.lengths.__getitem__, indices)) / self.examples

    def _most_padded(self, lengths: Sequence[int]) -> int:
        """Return the number of the last window that has the most tokens once it is padded."""
        tokens, number, most = np.asarray(lengths), 0, 0
        last, _, _ = self.cuts.place(self.windows - 1)
        for epoch in range(last + 1):
            first = self.cuts.first(epoch)
            ends = np.asarray(self.cuts.ends(epoch)[: self.windows - first])
            starts = np.concatenate([[0], ends[:-1]])
            _, order = _keys(self.examples, self.seed, epoch, self.shuffle, self.draws)
            padded = (ends - starts) * np.maximum.reduceat(tokens[np.asarray(order)[: ends[-1]]], starts)
            if padded.max() >= most:
                number, most = first + int(np.flatnonzero(padded == padded.max())[-1]), int(padded.max())
        return number


def permutation(examples: int, seed: int, epoch: int, shuffle: bool = True) -> list[int]:
    """Return the order of an epoch's examples."""
    if not shuffle:
        return list(range(examples))
    generator = torch.Generator().manual_seed(derive_seed(seed, "order", epoch))
    return torch.randperm(examples, generator=generator).tolist()


def _keys(
    examples: int, seed: int, epoch: int, shuffle: bool, draws: Draws | None
) -> tuple[Sequence[int], Sequence[int]]:
    """Return both parts of the keys of an epoch's examples, in order."""
    if draws is None:
        return [epoch] * examples, permutation(examples, seed, epoch, shuffle)
    passes, places = draws.epoch(seed, epoch, shuffle)
    return array("q", passes.tobytes()), array("q", places.tobytes())


def examples_of_epoch(dataset: Any) -> int:
    """Return the examples of an epoch over a data set: all of them, or as many as are drawn of a mixture."""
    draws = mixed(dataset)
    return len(dataset) if draws is None else len(draws)


def training_order(job: Job, dataset: Any) -> Order:
    """Return the order in which a job trains on a data set.

    Raises:
        SettingError: windows are in tokens, and those of the data are not known, or an example has more than a window.
    """
    draws, train = mixed(dataset), job.train
    examples = len(dataset) if draws is None else len(draws)
    if streamed(dataset) is not None:
        job = replace(job, shuffle=False)  # it is shuffled as it is read
    lengths = None if train.batch_tokens is None else tuple(_lengths(train, dataset))
    cuts = _cuts(train, job.shuffle, examples, lengths, draws)
    windows = job.windows_of(cuts)
    return Order(examples, cuts, train.seed, job.shuffle, windows=windows, lengths=lengths, draws=draws)


@functools.lru_cache(maxsize=2)
def _cuts(
    train: Train, shuffle: bool, examples: int, lengths: tuple[int, ...] | None, draws: Draws | None
) -> Cuts:
    """Return where epochs are cut; kept, as the start of a run asks several times for the same."""
    job = Job(train, shuffle=shuffle)
    return job.cuts(examples, None if lengths is None else _sums(lengths, train.seed, shuffle, draws))


def total_windows(job: Job, dataset: Any) -> int:
    """Return windows of the whole run of a job on a data set.

    Raises:
        SettingError: as `training_order`.
    """
    return job.train.updates or training_order(job, dataset).windows


def longest_that_fit(train: Train, dataset: Any) -> int:
    """Return how many of the longest examples a window holds, which is in tokens."""
    return train.examples_of(max(token_counts(dataset) or (train.sizes.last,)))


def in_examples(job: Job, rows: int, dataset: Any) -> Job:
    """Return a job whose windows have so many examples, and which has as many updates, where those of `job` are in tokens.

    Args:
        dataset: the examples to train on; None where they are only assumed, and the updates stay as the job says them.
    """
    if job.train.batch_tokens is None:
        return job
    changed = replace(job, train=replace(job.train.grown, batch_tokens=None, global_batch=rows))
    return changed if dataset is None else changed.for_updates(total_windows(job, dataset))


def _sums(lengths: Sequence[int], seed: int, shuffle: bool, draws: Draws | None) -> Sums:
    tokens = np.asarray(lengths, dtype=np.int64)

    @functools.lru_cache(maxsize=max(_CACHED_EPOCHS, _CACHED_BYTES // tokens.nbytes))
    def sums(epoch: int) -> Sequence[int]:
        _, order = _keys(len(lengths), seed, epoch, shuffle, draws)
        running = array("q")  # whose numbers are found faster than those of numpy
        running.frombytes(tokens[np.asarray(order)].cumsum().tobytes())
        return running

    return sums


def _lengths(train: Train, dataset: Any) -> list[int]:
    """Return the tokens of each example, none of which has more than a window.

    Raises:
        SettingError: they are not known, or one has.
    """
    lengths = token_counts(dataset)
    if lengths is None or len(lengths) != len(dataset):
        known = (
            "says no tokens of its examples"
            if lengths is None
            else f"has {len(lengths):,} lengths for {len(dataset):,} examples"
        )
        raise SettingError(
            "train.batch_tokens",
            f"needs the tokens of each example, and the data set ({type(dataset).__name__}) {known}",
            "Give a list of examples with input_ids, or a data set whose lengths are a number for each example; or give train.global_batch.",
        )
    longest = max(range(len(lengths)), key=lengths.__getitem__)
    size = train.sizes.smallest
    if lengths[longest] > size:
        names = ("batch_tokens", "start_batch")
        setting = next((name for name in names if getattr(train, name) == size), "batch_by_epoch")
        raise SettingError(
            f"train.{setting}",
            f"is {size:,} tokens, and {origin_of(dataset, longest, 'training')} has {lengths[longest]:,}",
            "Raise it, or lower data.max_length.",
        )
    return lengths
