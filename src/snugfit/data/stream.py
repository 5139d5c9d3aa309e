"""Streams: sources without a length and an index, as examples that have both.

Example n of a run is the same whoever asks for it, and when: the rows of a pass come in blocks, each of which is put in an order that is a
function of (seed, pass, block). So windows, ranks, workers and a resume are those of any data set; whoever begins in the middle begins at its
block where the source can, and else reads what is before it again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from snugfit.core.random import derive_seed, preserved_elsewhere, preserved_randomness, seed_host
from snugfit.data.report import STREAMED
from snugfit.data.texts.token_rows import ArrayExamples
from snugfit.errors import DataError, SettingError, SnugfitError
from snugfit.system.digest import digest
from snugfit.system.user_objects import describe

Encode = Callable[[Sequence[Any]], Sequence[Any]]

_IN_ORDER = 32
"""Rows that are read at once where they are not shuffled."""
_WORKER = "_worker_info"
_BEGINNING = "beginning"
"""The state of a source that has given no row of a pass."""

_HOST = torch.device("cpu")
_ONCE = "Give the function that makes it, which is called for each pass over the rows and on resume."


@dataclass(frozen=True)
class Stream:
    """A source of examples that is read from its beginning to its end, again and again: no length, no index.

    Args:
        source: a function that returns an iterable, such as a generator function, or an iterable that can be read again, such as an
            `IterableDataset` of torch or of Hugging Face, whose `set_epoch` is called before each pass. Where it has `state_dict` and
            `load_state_dict`, a run that goes on begins there; None is the state of a pass from its beginning.
        buffer: rows that are shuffled among each other; 1 leaves them in their order.
    Raises:
        SettingError: the source can be read once only, or the buffer holds no row.
    """

    source: Callable[[], Iterable[Any]] | Iterable[Any]
    buffer: int = 1024

    def __post_init__(self) -> None:
        if isinstance(self.buffer, bool) or not isinstance(self.buffer, int) or self.buffer < 1:
            raise SettingError.must_be("buffer", "a positive number of rows", repr(self.buffer))
        if isinstance(self.source, Iterator):
            raise SettingError("data", f"is {_kind(self.source)}, which can be read once", _ONCE)
        if not callable(self.source) and not isinstance(self.source, Iterable):
            raise SettingError("data", f"is {_kind(self.source)}, which is no source of rows", _ONCE)

    @property
    def name(self) -> str:
        return getattr(self.source, "__qualname__", type(self.source).__name__)

    @property
    def tells_state(self) -> bool:
        """Return whether the source says where it is, and begins there."""
        return hasattr(self.source, "state_dict") and hasattr(self.source, "load_state_dict")

    def state(self) -> Any:
        """Return where the source is, behind the last row that it gave, as JSON holds it; None where it does not say."""
        source: Any = self.source
        if not self.tells_state:
            return None
        try:
            return json.loads(json.dumps(source.state_dict()))  # a copy, as the source may go on with its own
        except (TypeError, ValueError):
            return None

    def load_state(self, state: Any) -> None:
        """Let the next pass begin where the source was; None: at its beginning.

        A source that does not take None fails now, while all can still be read again, and not in a later pass.
        """
        source: Any = self.source
        source.load_state_dict(None)
        if state is not None:
            source.load_state_dict(state)

    def rows(self, epoch: int) -> Iterator[Any]:
        """Return the rows of a pass."""
        source: Any = self.source
        if hasattr(source, "set_epoch"):
            source.set_epoch(epoch)
        return iter(source() if callable(source) and not isinstance(source, Iterable) else source)


def as_stream(data: Any) -> Stream | None:
    """Return data as a stream where they have no index, or None.

    Raises:
        SettingError: they can be read once only.

    >>> as_stream([1, 2]) is None, as_stream(lambda: iter([1, 2])) is None
    (True, False)
    """
    if isinstance(data, Stream):
        return data
    # torch's iterable data set inherits an index that raises
    if isinstance(data, IterableDataset) or (
        not isinstance(data, (DataLoader, Dataset, type))
        and not hasattr(data, "__len__")
        and (callable(data) or isinstance(data, Iterable))
    ):
        return Stream(data)
    return None


def rows_of(stream: Stream, epoch: int, setting: str, *, before: int = 0) -> Iterator[Any]:
    """Yield the rows of a pass.

    Args:
        setting: that names the source, for messages.
        before: rows of the pass that are before those.
    Raises:
        DataError: the source failed.
    """
    row = before + 1
    try:
        for each in stream.rows(epoch):
            yield each
            row += 1
    except SnugfitError:
        raise
    except Exception as error:  # the user's own code
        raise DataError(
            setting,
            f"{stream.name} failed at row {row:,}{f' of pass {epoch + 1}' if epoch else ''}: {describe(error)}",
            "Mend it and resume the run.",
        ) from error


class Position(NamedTuple):
    """The place of a block of rows in a stream, as a checkpoint holds it.

    Args:
        epoch, block: the pass, and the number of the block in it.
        start: the number of the first example that is made of it.
        digest: of all rows up to its end.
        before: of all rows before it; None in checkpoints of earlier versions.
        state: of the source at its beginning; None where the source does not say it.
    """

    epoch: int
    block: int
    start: int
    digest: str
    before: str | None = None
    state: Any = None

    @property
    def can_begin(self) -> bool:
        """Return whether the source can be read from here on."""
        return self.before is not None and self.state is not None


class _Block(NamedTuple):
    """The examples of rows that were read together, in the order of the run; `start` is the number of the first one, `end` that behind the last."""

    start: int
    end: int
    examples: Sequence[Any]
    position: Position


class Streamed(ABC):
    """Examples of a run that are read as they come, by their numbers from the start of the run."""

    @property
    @abstractmethod
    def largest(self) -> Any:
        """An example that none is larger than; None where that is not known."""

    @abstractmethod
    def __len__(self) -> int: ...
    @abstractmethod
    def __getitem__(self, number: int) -> Any: ...

    @abstractmethod
    def position(self, examples: int) -> Sequence[Any] | None:
        """Return how far has been read where the last of the first examples is, as JSON holds it; None where this process has not read so far."""

    @abstractmethod
    def reach(self, examples: int) -> None:
        """Read so far that the position of the last of the first examples is known."""

    @abstractmethod
    def go_on(self, examples: int, saved: Any) -> None:
        """Go on behind the first examples, and see that they are made of the rows that they were made of before.

        Args:
            saved: their position.
        Raises:
            DataError: they are not.
        """


class StreamedExamples(Streamed):
    """The examples of a run over a stream, by their numbers from the start of the run.

    Args:
        length: examples of the run.
        seed: of the orders of blocks, and of what the source itself draws from the global generators.
        skip: first rows of each pass that are left out, as they are validated on.
        setting: that names the source, for messages.
        encode: from the rows of a block to its examples, of any number; rows are examples without. It depends on them alone, so that whoever
            begins in the middle encodes nothing of what is before it.
        largest: an example that none is larger than, where that is known.
        draw: changes an example when it is asked for, by what it draws from the global generators.
    """

    def __init__(
        self,
        stream: Stream,
        length: int,
        *,
        seed: int,
        skip: int = 0,
        setting: str = "data",
        encode: Encode | None = None,
        largest: Any = None,
        draw: Callable[[Any], Any] | None = None,
    ) -> None:
        self.stream, self.seed, self.skip, self.setting = stream, seed, skip, setting
        self._largest = largest
        self._encode, self._draw, self._length = encode, draw, length
        self._size = stream.buffer if stream.buffer > 1 else _IN_ORDER
        self._first: _Block | None = None
        self._blocks: Iterator[_Block] | None = None
        self._recent: deque[_Block] = deque(maxlen=2)
        self._ends: list[int] = []
        self._positions: list[Position] = []
        self._begin: Position | None = None
        self._sought = False
        self._pid = os.getpid()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> Any:
        if not 0 <= number < self._length:
            raise IndexError(number)
        block = self._block(number)
        example = block.examples[number - block.start]
        return example if self._draw is None else self._draw(example)

    def __getstate__(self) -> dict[str, Any]:
        # a worker reads for itself
        return {**self.__dict__, "_blocks": None, "_recent": deque(maxlen=2), "_ends": [], "_positions": []}

    @property
    def largest(self) -> Any:
        return self._largest

    def held_out(self) -> list[Any]:
        """Return the first rows of the stream, which are not trained on.

        Raises:
            DataError: the stream has no more than those.
        """
        with self._drawing(0, "held out"):
            rows = list(itertools.islice(rows_of(self.stream, 0, self.setting), self.skip + 1))
        if len(rows) <= self.skip:
            raise DataError(
                "validation",
                f"takes the first {self.skip:,} rows, and {self.stream.name} has {len(rows):,}",
                "Hold out fewer.",
            )
        return rows[: self.skip]

    def position(self, examples: int) -> Position | None:
        """Return the position of the block that the last of the first examples is of; None where this process has not read so far."""
        if self._first is not None and 0 < examples <= self._first.end:
            return self._first.position
        place = bisect_right(self._ends, examples - 1)
        if examples < 1 or place == len(self._positions) or self._positions[place].start >= examples:
            return None
        return self._positions[place]

    def reach(self, examples: int) -> None:
        if examples:
            self._block(examples - 1)

    def go_on(self, examples: int, saved: Any) -> None:
        begin, digest = None, saved  # which is all that runs of before have
        if not isinstance(saved, str):
            begin = Position(*saved)
            digest = begin.digest
            if begin.can_begin and self._goes_on(examples, digest, begin):
                return
            begin = begin._replace(state=None)
        self._start_again()
        self._begin = begin
        self._block(examples - 1)
        position = self.position(examples)
        if position is None or position.digest != digest:
            self._begin = None
            raise DataError(
                self.setting,
                f"{self.stream.name} gave other rows when it was read again than this run was trained on (its first {examples:,} examples)",
                "Make it give the same rows each time, start a new run, or go on with the change: accept_changes 'data'.",
            )

    def _goes_on(self, examples: int, digest: str, begin: Position) -> bool:
        """Return whether the source begins at a position and gives the rows from there on that it gave; else all is to be read again."""
        self._start_again()
        self._begin = begin
        try:
            self._block(examples - 1)
        except Exception:  # noqa: BLE001 (it does not take the state: what is wrong with its rows is told when all are read)
            return False
        position = self.position(examples)
        return position is not None and position.digest == digest

    def _block(self, number: int) -> _Block:
        if self._pid != os.getpid():
            self._start_again()  # files that are open here are those of the process that this one was forked from
        if self._first is not None and number < self._first.end:
            return self._first
        for block in self._recent:
            if block.start <= number < block.end:
                return block
        if self._blocks is None or (self._recent and number < self._recent[-1].start):
            self._start_again()
            begin = self._begin
            self._blocks = self._read(None if begin is None or number < begin.start else begin)
        try:
            for block in self._blocks:
                if block.start == 0:
                    self._first = block
                self._recent.append(block)
                if number < block.end:
                    return block
        except BaseException:
            self._blocks = None
            raise
        raise AssertionError("a stream begins again where it ends")

    def _start_again(self) -> None:
        self._pid, self._blocks = os.getpid(), None
        self._recent.clear()
        self._ends, self._positions = [], []

    def _read(self, begin: Position | None) -> Iterator[_Block]:
        """Yield the blocks of all passes, from a position on.

        Raises:
            DataError: the source failed, or has no rows.
        """
        start, chain, first = 0, "", (0, 0)
        state = None if begin is None or not begin.can_begin else begin.state
        if state is not None:
            assert begin is not None and begin.before is not None  # of a position that can begin
            chain, first = begin.before, (begin.epoch, begin.block)
        for epoch in itertools.count(first[0]):
            place_of_first = first[1] if epoch == first[0] else 0
            rows = self._rows(epoch, place_of_first, state)
            empty, without_examples = place_of_first == 0, True
            for place in itertools.count(place_of_first):
                # a source that is to begin there says where it was before that
                state_before, state = self._state(place) if state is None else state, None
                before = chain
                block, problem = self._taken(rows, epoch, place)
                if problem is not None and self.stream.buffer > 1:
                    raise problem  # which row comes when depends on those that are missing
                if block:
                    empty = False
                    content = "\n".join([chain, *map(_content, block)])
                    chain = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
                if block and (begin is None or (epoch, place) >= (begin.epoch, begin.block)):
                    if begin is not None:
                        start, begin = begin.start, None
                    examples = block if self._encode is None else self._encode(block)
                    end = start + len(examples)
                    position = Position(epoch, place, start, chain, before, state_before)
                    self._ends.append(end)
                    self._positions.append(position)
                    yield _Block(start, end, self._shuffled(examples, epoch, place), position)
                    start, without_examples = end, without_examples and not len(examples)
                if problem is not None:
                    raise problem
                if len(block) < self._size:
                    break
            if empty:
                raise DataError(
                    self.setting,
                    f"{self.stream.name} has no rows" + (f" in pass {epoch + 1}" if epoch else ""),
                    "Give a stream that has rows each time it is read."
                    if not self.skip
                    else f"The first {self.skip:,} of each pass are held out: hold out fewer.",
                )
            if without_examples and begin is None:
                raise DataError(
                    self.setting,
                    f"no row of {self.stream.name} can be used" + (f" in pass {epoch + 1}" if epoch else ""),
                    "Correct the rows.",
                )

    def _rows(self, epoch: int, block: int, state: Any) -> Iterator[Any]:
        """Return the rows of a pass from a block on, where the source is in this state; None: from the beginning."""
        if state is None or state == _BEGINNING:
            if self._sought:
                self.stream.load_state(None)
                self._sought = False
            return itertools.islice(rows_of(self.stream, epoch, self.setting), self.skip, None)
        self.stream.load_state(state)
        self._sought = True
        return rows_of(self.stream, epoch, self.setting, before=self.skip + block * self._size)

    def _state(self, block: int) -> Any:
        """Return where the source is before a block, if it says so."""
        if block == 0:
            return _BEGINNING if self.stream.tells_state else None
        return self.stream.state()

    def _taken(self, rows: Iterator[Any], epoch: int, place: int) -> tuple[list[Any], SnugfitError | None]:
        """Return the next rows of a pass, and why there are no more where its source has failed."""
        block: list[Any] = []
        with self._drawing(epoch, place):
            try:
                block.extend(itertools.islice(rows, self._size))
            except SnugfitError as error:
                return block, error
        return block, None

    def _shuffled(self, examples: Sequence[Any], epoch: int, place: int) -> Sequence[Any]:
        if self.stream.buffer == 1:
            return examples
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "stream order", epoch, place))
        order = torch.randperm(len(examples), generator=generator).tolist()
        return (
            examples.at(order)
            if isinstance(examples, ArrayExamples)
            else [examples[place] for place in order]
        )

    @contextmanager
    def _drawing(self, epoch: int, place: int | str) -> Iterator[None]:
        """Temporarily let a source draw what it draws at this place in every process, as if it were in none of torch's workers.

        Torch's iterable data sets and those of Hugging Face would leave rows to other workers; here each worker reads all and makes examples
        of its own.
        """
        worker = vars(import_module("torch.utils.data._utils.worker"))
        info, worker[_WORKER] = worker[_WORKER], None
        with preserved_randomness(_HOST), preserved_elsewhere():
            seed_host(derive_seed(self.seed, "stream", epoch, place))
            try:
                yield
            finally:
                worker[_WORKER] = info


def streamed(dataset: Any) -> Streamed | None:
    """Return the stream, or the streams, that a data set is, or is a part of; None of others."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset if isinstance(dataset, Streamed) else None


def examples_of(
    stream: Stream,
    *,
    updates: int | None,
    window: int | None,
    seed: int,
    skip: int = 0,
    setting: str = "data",
    prefix: str = "",
    encode: Encode | None = None,
    largest: Any = None,
    draw: Callable[[Any], Any] | None = None,
) -> StreamedExamples:
    """Return the examples of a run over a stream.

    Args:
        updates, window: of the run, and examples of its largest one.
        prefix: of the names of both settings.
        encode, largest, draw: as of `StreamedExamples`.
    Raises:
        SettingError: the length of the run is said in epochs, or windows are in tokens.
    """
    if updates is None:
        raise SettingError(
            f"{prefix}updates",
            f"is missing, and {setting} ({stream.name}) is a stream: without a length, it has no epochs",
            f"Give {prefix}updates, the length of the run.",
        )
    if window is None:
        raise SettingError(
            f"{prefix}batch_tokens",
            f"needs the tokens of each example, and {setting} ({stream.name}) is a stream",
            f"Give {prefix}global_batch.",
        )
    return StreamedExamples(
        stream,
        updates * window,
        seed=seed,
        skip=skip,
        setting=setting,
        encode=encode,
        largest=largest,
        draw=draw,
    )


def counted(train: Any, validation: Any) -> dict[str, Any]:
    """Return how many examples there are to train on and to validate on, and their unit where they are streamed."""
    unit = {} if streamed(train) is None else {"unit": STREAMED}
    return {"train": len(train), "validation": 0 if validation is None else len(validation), **unit}


def _content(row: Any) -> str:
    """Return what tells a row from another: as JSON, with the digests of values that JSON has not.

    JSON takes a tenth of the time that a digest takes of lists of numbers.
    """
    try:
        return json.dumps(row, default=digest)
    except (TypeError, ValueError):  # keys that JSON has not, or a row within itself
        return digest(row)


def _kind(source: Any) -> str:
    name = type(source).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
