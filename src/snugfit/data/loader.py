"""A loader that can start at any window.

Which examples are in window n, and what their augmentation draws, are pure functions of (seed, epoch,
index): there is nothing to save but n, and the number of workers does not matter.
"""

from __future__ import annotations

import itertools
import json
import signal
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, default_collate

from snugfit.core.batch import Batch, Share, shared_out
from snugfit.core.random import (
    derive_seed,
    preserved_elsewhere,
    preserved_randomness,
    seed_device,
    seed_host,
)
from snugfit.core.tree import leaves, map_tree
from snugfit.data.examples import (
    DrawnArrays,
    Examples,
    WholeBatches,
    origin_of,
    source_index,
    source_indices,
    whole_examples,
)
from snugfit.data.named_sources import RowSources
from snugfit.data.order import Key, Order
from snugfit.data.sizes import largest
from snugfit.data.stream import Streamed, streamed
from snugfit.data.texts.token_rows import ArrayExamples
from snugfit.data.texts.tokens import PadRight, tensors_of
from snugfit.data.worker_messages import message_of, window_of
from snugfit.errors import DataError, SnugfitError, WorkerDied
from snugfit.kit.phases import phase
from snugfit.system.user_objects import describe

_POSITIONS = 64
"""Windows whose positions in a stream are known: more than are loaded ahead of an update."""

_MOST_AT_ONCE = 16
_BYTES_AT_ONCE = 1 << 18
"""Windows, and bytes of them, that are loaded at once where they are small."""

Collate = Callable[[list[Any]], Any]
Windows = Generator[Batch, None, None]
"""Close it to end the workers."""


class Loader:
    """Windows of a map-style dataset.

    Args:
        dataset: `len()` and `[index]`.
        order: which examples are in which window.
        collate: list of examples to a batch; torch's default without.
        num_workers: processes that load ahead; 0 loads in this one.
        rank, ranks: which part of each window is loaded: neighbours, in the order of the window.
        together: examples that are not parted, where a technique makes something of neighbours.
        split: what the examples are for, for messages.
    """

    def __init__(
        self,
        dataset: Any,
        order: Order,
        collate: Collate | None = None,
        *,
        num_workers: int = 0,
        pin: bool = False,
        rank: int = 0,
        ranks: int = 1,
        together: int = 1,
        split: str = "training",
    ) -> None:
        self.order = order
        self._dataset = dataset
        self._split = split
        part = _Part(rank, ranks, together)
        self._fetch = _Fetch(dataset, collate or default_collate, order.seed, part, split)
        self._places: dict[int, int] = {}
        self._num_workers = num_workers
        self._pin = pin
        self._positions: OrderedDict[int, Any] = OrderedDict()

    @property
    def rows(self) -> int:
        """The examples of the data set, of which an epoch of a mixture may have some several times and others not at all."""
        return len(self._dataset)

    def by_source(self, windows: int) -> list[dict[str, Any]]:
        """Return what each of several sources is of the first windows of the run: its name, rows, share of the examples and epochs."""
        whole = whole_examples(self._dataset)
        if whole is None or whole.sources is None:
            return []
        sizes, examples = [len(own) for own in whole.members()], self.order.cuts.examples_after(windows)
        draws = self.order.draws
        counts = [examples * size / self.rows for size in sizes]
        if draws is not None:
            counts = list(draws.counts_after(examples))
        return [
            {"name": name, "rows": size, "share": count / examples, "epochs": count / size if size else 0.0}
            for name, size, count in zip(whole.sources.names, sizes, counts, strict=True)
        ]

    @property
    def sources(self) -> RowSources | None:
        """The sources of the rows by their ids; None where there is one, or it is not known."""
        examples = whole_examples(self._dataset)
        if examples is None or examples.sources is None:
            return None
        return RowSources(examples.sources.names, examples.starts)

    @property
    def stream(self) -> Streamed | None:
        """The stream, or the streams, that the examples are of, if they are of any."""
        return streamed(self._dataset)

    def stream_position(self, examples: int) -> Sequence[Any] | None:
        """Return how far the stream has been read where the last of the first examples is, here or by a worker; None where that is not known, or nothing is streamed."""
        stream = self.stream
        if stream is None:
            return None
        return self._positions[examples] if examples in self._positions else stream.position(examples)

    def windows(
        self, start: int, stop: int, rescue: Callable[[], bool] = lambda: False, *, one_by_one: bool = False
    ) -> Windows:
        """Return windows number `start` to `stop`, exclusive; with `one_by_one` each is loaded when it is asked for, to be timed.

        When a worker dies, `rescue` is asked whether to load the rest in this process: a signal that asks a whole
        process group to stop ends the workers at once, and what is under way has to be finished.

        Raises:
            DataError: the dataset or `collate` failed on an example.
            WorkerDied: a worker process was killed.
        """
        if self._num_workers > 0:
            try:
                for window in self._from_workers(start, stop):
                    start += 1
                    yield window
            except WorkerDied:
                if not rescue():
                    raise
        while start < stop:
            with phase("data"):
                writes = _Writes(self._dataset)
                windows = self._next(start, start + 1 if one_by_one or not writes.none_since() else stop)
                if self._pin:  # else their copy to the device would wait for what the device still computes
                    windows = [window.pin_memory() for window in windows]
            for place, window in enumerate(windows):
                if place and not writes.none_since():
                    break  # a loss or a hook may have written to the rows of this one
                yield window
                start += 1

    def _next(self, start: int, stop: int) -> list[Batch]:
        """Return window number `start`, and those after it, up to `stop`, that are loaded with it.

        Small windows of tensors in memory are loaded some at once: one after the other they take a third of the time that they take between
        updates.
        """
        if not self._fetch.takes_rows:
            return [self._fetch(self.order.window(start))]
        first = self._fetch.rows(*self.order.rows(start))
        window_bytes = max(1, sum(tensor.nbytes for tensor in leaves(first.data)))
        stop = min(stop, start + min(_MOST_AT_ONCE, _BYTES_AT_ONCE // window_bytes))
        return [first, *(self._fetch.rows(*self.order.rows(number)) for number in range(start + 1, stop))]

    def token_counts(self, indices: Sequence[int]) -> list[int] | None:
        """Return the tokens of some examples; None where they are not in arrays already, or each has several texts."""
        whole = whole_examples(self._dataset)
        examples = None if whole is None else whole.examples
        if not isinstance(examples, ArrayExamples) or examples.sequences:
            return None
        return examples.at(indices).token_counts()

    def origins(self, ids: Sequence[int]) -> list[str]:
        """Return where the examples of a batch's `ids` come from, in words: the file and line, or the row's index."""
        if not self._places:
            self._places = {source_index(self._dataset, index): index for index in range(self.rows)}
        return [origin_of(self._dataset, self._places[each], self._split) for each in ids]

    def source_index(self, index: int) -> int:
        """Return the index that an example has in the data set that this one is a part of, as in `Batch.ids`."""
        return source_index(self._dataset, index)

    def example(self, index: int) -> Any:
        """Return the example as the first epoch has it.

        Raises:
            DataError: the dataset failed on it.
        """
        return self._fetch.example((0, index))

    def worst_window(self) -> tuple[Batch, bool]:
        """Return a window of the largest examples, and True; one with the most examples and False where their sizes are not known.

        Of several ranks each has as many as the one with the most, and they are a window. Of a stream that knows an example that none is larger than,
        they are all like that one.

        The largest is in it first and last: the last micro-batch of a window meets the gradients of those before it.
        """
        keys = self._fetch.most_of(self.order.largest_window())
        if (stream := self.stream) is not None and stream.largest is not None:
            return self._fetch.alike(stream.largest, keys), True
        by_length = self.order.lengths is not None
        indices = [index for _, index in keys] if by_length else largest(self._dataset, len(keys))
        if indices is None:
            return self._fetch.loaded(keys), False
        # a window of a mixture may have more examples than there are
        indices = list(itertools.islice(itertools.cycle(indices), len(keys)))
        return self._fetch.loaded([(0, index) for index in [*indices[:-1], indices[0]]]), True

    def _from_workers(self, start: int, stop: int) -> Windows:
        keys = (self.order.window(number) for number in range(start, stop))
        loader: DataLoader[Any] = DataLoader(
            _KeyedDataset(self._fetch),  # type: ignore[arg-type]
            sampler=_Keys(keys, stop - start),
            batch_size=None,
            num_workers=self._num_workers,
            pin_memory=self._pin,
            # without its own generator the loader would draw from, and move, the global random state
            generator=torch.Generator(),
        )
        with unchanged_child_handler():
            windows = iter(loader)
        try:
            for number in range(start, stop):
                with phase("data"):
                    answer = next_of_workers(windows)
                    if isinstance(answer, SnugfitError):
                        raise answer
                    message, position = answer
                    if position is not None:
                        self._note(self.order.cuts.examples_after(number + 1), json.loads(position))
                    window = window_of(message)
                    if self._pin and isinstance(message, bytes):
                        window = window.pin_memory()
                yield window
        finally:
            del windows  # ends the workers now, not when the last error that knows this frame is forgotten

    def _note(self, examples: int, position: Any) -> None:
        self._positions[examples] = position
        if len(self._positions) > _POSITIONS:
            self._positions.popitem(last=False)


def next_of_workers(windows: Iterator[Any]) -> Any:
    """Return what workers load next, an error where one of them has died, or None at the end."""
    try:
        return next(windows, None)
    # torch says that a worker died in a RuntimeError, or lets through what broke in the middle of a transfer
    except (RuntimeError, OSError, EOFError) as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(": .")
        return WorkerDied(
            f"data: a worker process failed: {reason}. It may have been killed for want of memory: lower plan.num_workers "
            "(0 loads in the main process) and resume the run."
        )


@contextmanager
def unchanged_child_handler() -> Iterator[None]:
    """Temporarily allow torch to install its handler for dead workers; on exit it is gone.

    It raises wherever the main thread happens to be: in the middle of an update, or of a checkpoint.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGCHLD"):
        yield
        return
    handler = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, handler)


class _Part(NamedTuple):
    """The part of each window on this rank."""

    rank: int
    ranks: int
    together: int

    def of(self, window: Sequence[Key]) -> tuple[Sequence[Key], Share | None]:
        """Return this rank's keys, and what that is of the window; the first key where the window has too few for all ranks."""
        if self.ranks == 1:
            return window, None
        parts = shared_out(len(window), self.ranks, self.together)
        own = parts[self.rank]
        return window[own.start : own.stop] or window[:1], Share(tuple(map(len, parts)), self.rank)


class _Writes:
    """Tells whether the tensors of a data set are written to from now on.

    Torch counts what it writes to a tensor. What others write, it does not see: NumPy, from whom memory comes or to whom it was given, for
    which its size is fixed, and other processes. Such tensors count as written to at any time. `.data` and DLPack leave no sign of either kind.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._tensors = dataset.tensors if type(dataset) is TensorDataset else ()
        self._counted = bool(self._tensors) and all(map(_counts_writes, self._tensors))
        self._storages = [each.untyped_storage() for each in self._tensors] if self._counted else []
        self._versions = self._now()

    def none_since(self) -> bool:
        """Return whether the tensors are known to hold what they held."""
        return (
            self._counted
            and self._dataset.tensors is self._tensors
            and self._now() == self._versions
            and all(map(torch.UntypedStorage.resizable, self._storages))
        )

    def _now(self) -> list[int]:
        return [each._version for each in self._tensors] if self._counted else []


def _counts_writes(tensor: torch.Tensor) -> bool:
    """Return whether whoever writes to a tensor does so through torch, in this process."""
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    return plain and not tensor.is_inference() and not (tensor.is_cpu and tensor.is_shared())


class _Fetch:
    """Makes a window from keys, in this process or in a worker."""

    def __init__(self, dataset: Any, collate: Collate, seed: int, part: _Part, split: str) -> None:
        self._dataset = dataset
        self._collate = collate
        self._seed = seed
        self._part = part
        self._split = split
        self.stream = streamed(dataset)
        self.takes_rows = part.ranks == 1 and self._of_tensors
        # these return what they hold: nothing random to seed
        self._holds_examples = isinstance(dataset, (list, tuple, Examples))
        # nor do they with torch's own collate: no generator is looked at, which takes several times as long as a small window
        self._draws_nothing = type(dataset) in (list, tuple) and collate is default_collate

    def __call__(self, window: Sequence[Key]) -> Batch:
        keys, share = self._part.of(window)
        batch = self.loaded(keys)
        if self.stream is not None:
            self.stream.reach(
                _end_of(window)
            )  # the parts of other ranks too, behind which a checkpoint goes on
        return batch if share is None else replace(batch, share=share)

    def most_of(self, window: Sequence[Key]) -> Sequence[Key]:
        """Return as many of a window's keys as no rank has more of."""
        _, share = self._part.of(window)
        return window if share is None else window[: max(share.counts)]

    def loaded(self, keys: Sequence[Key]) -> Batch:
        """Return the examples of these keys, as a window."""
        indices = [index for _, index in keys]
        if self._of_tensors:
            return self.rows(indices, torch.tensor(indices))
        if isinstance(self._dataset, WholeBatches):
            return Batch.of(self._dataset.batch(indices), ids=source_indices(self._dataset, indices))
        if self._draws_nothing:
            return Batch.of(self._collated(self._examples(keys), keys), ids=indices)
        ids = source_indices(self._dataset, indices)
        if (padded := self._padded(keys)) is not None:
            return Batch.of(padded, ids=ids)
        with preserved_randomness(_HOST), preserved_elsewhere():
            # a window is told from all others by its first example; collating may draw too, to mask words for instance
            examples = self._examples(keys)
            seed_host(derive_seed(self._seed, "collate", *keys[0]))
            return Batch.of(self._collated(examples, keys), ids=ids)

    @property
    def _of_tensors(self) -> bool:
        """Return whether a window is rows of tensors, and no code of anybody else makes it."""
        return type(self._dataset) is TensorDataset and self._collate is default_collate

    def rows(self, indices: list[int], rows: torch.Tensor) -> Batch:
        """Return rows of a data set of tensors, as a window."""
        data = tuple([tensor.detach().index_select(0, rows) for tensor in self._dataset.tensors])
        return Batch(data, len(indices), tuple(indices))

    def alike(self, example: Any, keys: Sequence[Key]) -> Batch:
        """Return a window of so many examples like this one."""
        with preserved_randomness(_HOST), preserved_elsewhere():
            seed_host(derive_seed(self._seed, "collate", *keys[0]))
            return Batch.of(self._collated([example] * len(keys), keys), ids=[index for _, index in keys])

    def example(self, key: Key) -> Any:
        """Return one example, with all generators as they were."""
        with preserved_randomness(_HOST), preserved_elsewhere():
            (example,) = self._examples([key])
        return example

    def _padded(self, keys: Sequence[Key]) -> dict[str, Tensor] | None:
        """Return examples of arrays as padding makes a batch of them, without a Python number for each token; None where there are no such."""
        if not isinstance(self._collate, PadRight):
            return None
        indices, fill = [index for _, index in keys], self._collate.fill
        if isinstance(self._dataset, DrawnArrays):

            def seed(number: int) -> None:
                seed_device(derive_seed(self._seed, "example", *keys[number]), _HOST)

            return tensors_of(self._dataset.padded(indices, fill, seed))
        held = self._dataset.examples if isinstance(self._dataset, Examples) else None
        if not isinstance(held, ArrayExamples) or held.sequences:
            return None
        return tensors_of(held.padded(indices, fill))

    def _examples(self, keys: Sequence[Key]) -> list[Any]:
        if self._holds_examples:
            return [self._dataset[index] for _, index in keys]
        examples = []
        for epoch, index in keys:
            seed_host(derive_seed(self._seed, "example", epoch, index))
            try:
                examples.append(self._dataset[index])
            except SnugfitError:
                raise
            except Exception as error:
                raise DataError(
                    "data",
                    f"{origin_of(self._dataset, index, self._split)} cannot be loaded: {describe(error)}",
                    "Mend it, or leave it out of the data set.",
                ) from error
        return examples

    def _collated(self, examples: list[Any], keys: Sequence[Key]) -> Any:
        try:
            stacked = _stacked(examples) if self._collate is default_collate else None
            return _without_gradients(self._collate(examples) if stacked is None else stacked)
        except SnugfitError:
            raise
        except Exception as error:
            some = ", ".join(origin_of(self._dataset, index, self._split) for _, index in keys[:8])
            remedy = "Give a collate function" if self._collate is default_collate else "Correct collate"
            raise DataError(
                "data",
                f"examples cannot be put into one batch: {describe(error)}",
                f"{remedy}. They are {some}{(' …' if len(keys) > 8 else '.')}",
            ) from error


def _stacked(examples: list[Any]) -> dict[Any, Tensor] | None:
    """Return dicts of plain tensors as torch's collate puts them into a batch, without its looks at each; None for anything else."""
    first = examples[0]
    if type(first) is not dict or not first:
        return None
    columns = {}
    for name in first:
        column = [example[name] for example in examples]
        if not _PLAIN.issuperset(map(type, column)):
            return None
        columns[name] = torch.stack(column)
    return columns


_PLAIN = frozenset({Tensor})


def _without_gradients(data: Any) -> Any:
    """Return a window whose tensors collect no gradient: of rows nothing is learned, and theirs would grow from epoch to epoch."""
    if not any(tensor.requires_grad for tensor in leaves(data)):
        return data
    return map_tree(Tensor.detach, data)


_HOST = torch.device("cpu")


def _end_of(window: Sequence[Key]) -> int:
    """Return the number behind the last example of a window of a stream."""
    return max(index for _, index in window) + 1


class _KeyedDataset:
    """A dataset whose index is a list of keys and whose item is the message of the window with its position in a stream, as JSON, or what is wrong with it."""

    def __init__(self, fetch: _Fetch) -> None:
        self._fetch = fetch

    def __getitem__(self, keys: Sequence[Key]) -> tuple[Batch | bytes, str | None] | SnugfitError:
        try:
            message, stream = message_of(self._fetch(keys)), self._fetch.stream
            # as a text, of which torch makes no tensors when it pins
            return message, None if stream is None else json.dumps(stream.position(_end_of(keys)))
        except SnugfitError as error:  # raised from here, its message would come back wrapped in a traceback
            return error


class _Keys(Sized):
    def __init__(self, keys: Iterator[list[Key]], count: int) -> None:
        self._keys = keys
        self._count = count

    def __iter__(self) -> Iterator[list[Key]]:
        return self._keys

    def __len__(self) -> int:
        return self._count


class WindowsAhead:
    """Windows in order, of which `fetch` loads the next one while a device computes.

    The thread that trains fetches, not one beside it: data sets and collate functions may draw from the global generators of torch, NumPy
    and Python, which a training draws from too, and may hold files that no second thread may read. An error is raised where the window is
    asked for, so that the update before it is whole.
    """

    def __init__(self, windows: Generator[Batch]) -> None:
        self._windows = windows
        self._fetched: list[Batch | Exception] = []

    def fetch(self) -> None:
        """Load the next window, if it has not been loaded yet; what goes wrong is raised when it is asked for."""
        if self._fetched:
            return
        try:
            self._fetched.append(next(self._windows))
        except Exception as error:  # noqa: BLE001 (also the end of all windows)
            self._fetched.append(error)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if not self._fetched:
            return next(self._windows)
        fetched = self._fetched.pop()
        if isinstance(fetched, Exception):
            raise fetched
        return fetched

    def close(self) -> None:
        """Forget what was fetched, and end the workers that load."""
        self._fetched.clear()
        self._windows.close()
