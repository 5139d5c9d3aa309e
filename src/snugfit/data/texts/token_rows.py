"""Examples of tokens in arrays: a few bytes for each token, in memory or in a file that is mapped into it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from snugfit.data.lazy.lazy_sequence import LazySequence
from snugfit.data.texts.spooled_numbers import Numbers, SpooledNumbers, small

Example: TypeAlias = dict[str, Any]
"""One example on the host: lists of ints, and `labels`, an int or a list of them."""

_PENDING = 1 << 16
"""Tokens that are Python numbers until they become an array."""


class ArrayExamples(LazySequence[Example]):
    """Examples that are made of arrays when they are asked for: dicts of lists of numbers, as those that are in memory."""

    sequences: int = 0
    """Lists of each name in an example, where it has several."""

    def at(self, places: Sequence[int]) -> ArrayExamples:
        """Return the examples at these places, without a copy of their tokens."""
        raise NotImplementedError

    def sizes(self) -> list[int]:
        """Return how many numbers each example has."""
        raise NotImplementedError

    def token_counts(self) -> list[int]:
        """Return how many tokens each example has, of several lists together."""
        raise NotImplementedError

    def arrays(self, place: int) -> dict[str, Any]:
        """Return the example at a place that there is, with arrays for its lists, which are not to be changed."""
        raise NotImplementedError

    def padded(self, places: Sequence[int], fill: Mapping[str, int]) -> dict[str, Numbers]:
        """Return examples that have no several lists of a name as arrays of a row each, lists padded on the right.

        Args:
            fill: the number behind the lists of a name; 0 without.
        """
        examples = [self.arrays(place) for place in places]
        columns = {name: [example[name] for example in examples] for name in examples[0]}
        return {
            name: _padded(values, fill.get(name, 0))
            if isinstance(values[0], np.ndarray)
            else np.array(values)
            for name, values in columns.items()
        }

    def value(self, place: int) -> Example:
        """Return the example at a place that there is."""
        return {name: _plain(value) for name, value in self.arrays(place).items()}


class TokenRows(ArrayExamples):
    """Examples of lists that are equally long within one example.

    Args:
        lists: the lists of all examples by their name, one after the other.
        ends: where each list ends.
        values: one number of each example by its name, or a list of them, equally long for all.
        sequences: lists of each name in an example, where it has several.
        places: of the examples among the lists; all of them without.

    >>> rows = TokenRows({"input_ids": np.array([5, 6, 7])}, np.array([2, 3]), {"labels": np.array([1, 0])})
    >>> rows[0], rows.at([1])[0]
    ({'input_ids': [5, 6], 'labels': 1}, {'input_ids': [7], 'labels': 0})
    """

    def __init__(
        self,
        lists: Mapping[str, Numbers],
        ends: Numbers,
        values: Mapping[str, Numbers] | None = None,
        *,
        sequences: int = 0,
        places: Numbers | None = None,
    ) -> None:
        self.lists, self.ends, self.values = dict(lists), ends, dict(values or {})
        self.sequences = sequences
        self._places = np.arange(len(ends) // max(sequences, 1)) if places is None else places

    @classmethod
    def of(cls, examples: Iterable[Example], *, sequences: int = 0) -> TokenRows:
        """Return examples that have been made already."""
        writer = TokenWriter(sequences=sequences)
        for example in examples:
            writer.add(example)
        return writer.rows()

    @classmethod
    def joined(cls, parts: Sequence[TokenRows]) -> TokenRows:
        """Return the examples of parts that are whole and have no single numbers, one after the other, as arrays in memory."""
        whole = [part for part in parts if len(part)]
        if len(whole) < 2:
            return whole[0] if whole else parts[0]
        starts = np.cumsum([0, *(int(part.ends[-1]) for part in whole[:-1])])
        return cls(
            {name: small(np.concatenate([part.lists[name] for part in whole])) for name in whole[0].lists},
            np.concatenate([part.ends + start for part, start in zip(whole, starts, strict=True)]),
            sequences=whole[0].sequences,
        )

    def __len__(self) -> int:
        return len(self._places)

    def at(self, places: Sequence[int]) -> TokenRows:
        indices = np.asarray(places, dtype=np.int64)
        values = {name: array[indices] for name, array in self.values.items()}
        return TokenRows(
            self.lists, self.ends, values, sequences=self.sequences, places=self._places[indices]
        )

    def with_values(self, **values: Sequence[Any]) -> TokenRows:
        """Return the examples with a number more for each of them, by its name."""
        more = {name: np.asarray(given) for name, given in values.items()}
        return TokenRows(
            self.lists,
            self.ends,
            {**self.values, **more},
            sequences=self.sequences,
            places=self._places,
        )

    def cut(self, size: int) -> tuple[TokenRows, Numbers]:
        """Return texts cut into examples of at most `size` tokens, each of one text and scored whole, and the number of the text of each.

        A single last token, which predicts nothing, is left out. No token is copied.

        >>> rows = TokenRows({"input_ids": np.array([5, 6, 7, 8, 9])}, np.array([2, 5]))
        >>> blocks, texts = rows.cut(2)
        >>> [block["input_ids"] for block in blocks], texts.tolist()
        ([[5, 6], [7, 8]], [0, 1])
        """
        starts = np.concatenate([[0], self.ends[:-1]]).astype(np.int64)
        counts = -(-(self.ends - starts) // size)
        text, within = _numbered(counts)
        ends = np.minimum(starts[text] + (within + 1) * size, self.ends[text])
        of_place, block = _numbered(counts[self._places])
        places = (np.cumsum(counts) - counts)[self._places][of_place] + block
        whole = np.diff(ends, prepend=0)[places] > 1
        ids = self.lists.get("input_ids", np.empty(0, np.uint8))
        lists = {"input_ids": ids, "attention_mask": np.broadcast_to(np.uint8(1), ids.shape), "labels": ids}
        return TokenRows(lists, ends, places=places[whole]), of_place[whole]

    def spans(self) -> tuple[Numbers, Numbers]:
        """Return where in the arrays the lists of each example begin and end, of several those of the first and the last."""
        last = self.ends[max(self.sequences, 1) - 1 :: max(self.sequences, 1)]
        return np.concatenate([[0], last[:-1]])[self._places], last[self._places]

    def lengths(self) -> Numbers:
        """Return the length of the lists of each example, of several together."""
        starts, ends = self.spans()
        return ends - starts

    def count(self, number: int, name: str = "input_ids") -> int:
        """Return how often a number stands in the lists of that name."""
        if not len(self):
            return 0
        hits = np.flatnonzero(self.lists[name] == number)
        return int(sum(np.subtract(*(np.searchsorted(hits, each) for each in reversed(self.spans())))))

    def sizes(self) -> list[int]:
        each = sum(math.prod(array.shape[1:]) for array in self.values.values())
        counts: list[int] = (self.lengths() * len(self.lists) + each).tolist()
        return counts

    def token_counts(self) -> list[int]:
        counts: list[int] = self.lengths().tolist()
        return counts

    def padded(self, places: Sequence[int], fill: Mapping[str, int]) -> dict[str, Numbers]:
        assert not self.sequences
        rows = self._places[np.asarray(places, np.int64)]
        starts = np.where(rows > 0, self.ends[rows - 1], 0)
        columns = starts[:, None] + np.arange((self.ends[rows] - starts).max())
        inside = columns < self.ends[rows][:, None]
        at = columns[inside]
        padded = {}
        for name, numbers in self.lists.items():
            padded[name] = np.full(inside.shape, fill.get(name, 0))
            padded[name][inside] = numbers[at]
        for name, values in self.values.items():
            own = values[np.asarray(places, np.int64)]
            padded[name] = own.astype(np.int64) if own.dtype.kind in "iu" else own
        return padded

    def tokens(self, place: int, name: str = "input_ids") -> Numbers:
        """Return one list of an example as an array that is not to be changed."""
        return self._list(name, int(self._places[place]))

    def arrays(self, place: int) -> dict[str, Any]:
        row = int(self._places[place])
        if self.sequences:
            own = range(row * self.sequences, (row + 1) * self.sequences)
            arrays: dict[str, Any] = {name: [self._list(name, at) for at in own] for name in self.lists}
        else:
            start, end = self.ends[row - 1] if row else 0, self.ends[row]
            arrays = {name: numbers[start:end] for name, numbers in self.lists.items()}
        for name, values in self.values.items():
            arrays[name] = values[place].tolist()
        return arrays

    def _list(self, name: str, at: int) -> Numbers:
        start = self.ends[at - 1] if at else 0
        return self.lists[name][start : self.ends[at]]

    def __reduce__(self) -> tuple[Any, ...]:
        # a file that is mapped is opened again by a process that gets its examples as bytes, not sent to it
        arrays = [
            {name: _portable(array) for name, array in each.items()} for each in (self.lists, self.values)
        ]
        return _opened, (*arrays, _portable(self.ends), self._places, self.sequences)


class TokenBlocks(ArrayExamples):
    """Texts one after the other, cut into examples of `size` tokens, each of which is scored; a single last token is left out.

    Args:
        texts: the tokens of each text as `input_ids`.

    >>> blocks = TokenBlocks(TokenRows({"input_ids": np.array([5, 6, 7, 8, 9])}, np.array([2, 5])), 3)
    >>> [block["input_ids"] for block in blocks]
    [[5, 6, 7], [8, 9]]
    """

    def __init__(self, texts: TokenRows, size: int, places: Numbers | None = None) -> None:
        self._texts, self._size = texts, size
        self._ends = np.cumsum(texts.lengths())
        count = int(self._ends[-1]) if len(self._ends) else 0
        self._count = count
        self._places = np.arange((count + size - 2) // size if count else 0) if places is None else places

    def __len__(self) -> int:
        return len(self._places)

    def at(self, places: Sequence[int]) -> TokenBlocks:
        return TokenBlocks(self._texts, self._size, self._places[np.asarray(places, dtype=np.int64)])

    def sizes(self) -> list[int]:
        return [3 * tokens for tokens in self.token_counts()]

    def token_counts(self) -> list[int]:
        counts: list[int] = np.minimum(self._size, self._count - self._places * self._size).tolist()
        return counts

    def text_of(self, place: int) -> int:
        """Return the number of the text in which an example begins."""
        return int(np.searchsorted(self._ends, self._places[place] * self._size, side="right"))

    def arrays(self, place: int) -> dict[str, Any]:
        start = int(self._places[place]) * self._size
        stop = min(start + self._size, self._count)
        pieces = []
        text = self.text_of(place)
        before = int(self._ends[text - 1]) if text else 0
        while before < stop:
            pieces.append(self._texts.tokens(text)[max(0, start - before) : stop - before])
            before = int(self._ends[text])
            text += 1
        ids = np.concatenate(pieces)
        return {"input_ids": ids, "attention_mask": np.ones(len(ids), np.uint8), "labels": ids}


class JoinedArrays(ArrayExamples):
    """Examples of several sources one after the other, each of which stays where it is.

    Args:
        places: of the examples among those of all parts; all of them without.
    """

    def __init__(self, parts: Sequence[ArrayExamples], places: Numbers | None = None) -> None:
        self._parts, self._ends = list(parts), np.cumsum([len(part) for part in parts])
        self._places = np.arange(int(self._ends[-1])) if places is None else places
        self.sequences = max(part.sequences for part in self._parts)

    @classmethod
    def of(cls, parts: Sequence[Any]) -> JoinedArrays | None:
        """Return the examples of parts; None where some are in no arrays."""
        return cls(parts) if all(isinstance(part, ArrayExamples) for part in parts) else None

    def __len__(self) -> int:
        return len(self._places)

    def at(self, places: Sequence[int]) -> JoinedArrays:
        return JoinedArrays(self._parts, self._places[np.asarray(places, dtype=np.int64)])

    def sizes(self) -> list[int]:
        return self._of([part.sizes() for part in self._parts])

    def token_counts(self) -> list[int]:
        return self._of([part.token_counts() for part in self._parts])

    def arrays(self, place: int) -> dict[str, Any]:
        at = int(self._places[place])
        part = int(np.searchsorted(self._ends, at, side="right"))
        return self._parts[part].arrays(at - (int(self._ends[part - 1]) if part else 0))

    def _of(self, numbers: Sequence[Sequence[int]]) -> list[int]:
        every = np.array(list(itertools.chain.from_iterable(numbers)), np.int64)
        counts: list[int] = every[self._places].tolist()
        return counts


class FramedBlocks(ArrayExamples):
    """Blocks of tokens, each between special ones, which an encoder reads as texts.

    >>> blocks = TokenBlocks(TokenRows({"input_ids": np.array([5, 6, 7, 8])}, np.array([4])), 2)
    >>> [block["input_ids"] for block in FramedBlocks(blocks, (1,), (2,))]
    [[1, 5, 6, 2], [1, 7, 8, 2]]
    """

    def __init__(self, blocks: ArrayExamples, prefix: Sequence[int], suffix: Sequence[int]) -> None:
        self._blocks, self._prefix, self._suffix = blocks, tuple(prefix), tuple(suffix)

    def __len__(self) -> int:
        return len(self._blocks)

    def at(self, places: Sequence[int]) -> FramedBlocks:
        return FramedBlocks(self._blocks.at(places), self._prefix, self._suffix)

    def sizes(self) -> list[int]:
        return [2 * tokens for tokens in self.token_counts()]

    def token_counts(self) -> list[int]:
        around = len(self._prefix) + len(self._suffix)
        return [tokens + around for tokens in self._blocks.token_counts()]

    def arrays(self, place: int) -> dict[str, Any]:
        ids = self._blocks.arrays(place)["input_ids"]
        whole = np.concatenate([np.array(self._prefix, ids.dtype), ids, np.array(self._suffix, ids.dtype)])
        return {"input_ids": whole, "attention_mask": np.ones(len(whole), np.uint8)}


class TokenWriter:
    """Examples that become arrays while they are made, so that few of them are Python numbers at a time, and many of them are in no memory.

    Args:
        sequences: lists of each name in an example, where it has several.
    """

    def __init__(self, *, sequences: int = 0) -> None:
        self._sequences = sequences
        self._pending: dict[str, list[int]] = {}
        self._arrays: dict[str, SpooledNumbers] = {}
        self._values: dict[str, list[Any]] = {}
        self._lengths: list[int] = []
        self._open = 0

    def add(self, example: Mapping[str, Any]) -> None:
        """Take an example: its lists, which are equally long, and its single numbers."""
        lists = {name: value for name, value in example.items() if isinstance(value, list)}
        for name, value in example.items():
            if name not in lists:
                self._values.setdefault(name, []).append(value)
        for part in range(max(self._sequences, 1)):
            self.extend({name: value[part] if self._sequences else value for name, value in lists.items()})
            self.end()

    def add_all(self, lists: Mapping[str, Sequence[Sequence[int]]]) -> None:
        """Take the lists of several examples by their name."""
        for name, values in lists.items():
            self._pending.setdefault(name, []).extend(itertools.chain.from_iterable(values))
        self._lengths += map(len, next(iter(lists.values()), ()))
        self._flush(at=_PENDING)

    def extend(self, lists: Mapping[str, Sequence[int]]) -> None:
        """Take more of the lists of an example, which `end` ends."""
        for name, value in lists.items():
            self._pending.setdefault(name, []).extend(value)
        self._open += len(next(iter(lists.values()), ()))
        self._flush(at=_PENDING)

    def end(self) -> None:
        """End the lists of an example."""
        self._lengths.append(self._open)
        self._open = 0

    def rows(self) -> TokenRows:
        """Return all examples."""
        self._flush()
        return TokenRows(
            {name: numbers.whole() for name, numbers in self._arrays.items()},
            np.cumsum(self._lengths, dtype=np.int64),
            {name: small(np.asarray(values)) for name, values in self._values.items()},
            sequences=self._sequences,
        )

    def _flush(self, at: int = 0) -> None:
        """Make arrays of what is there, where some name has at least so many numbers."""
        if max(map(len, self._pending.values()), default=0) < at:
            return
        for name, numbers in self._pending.items():
            self._arrays.setdefault(name, SpooledNumbers()).add(np.asarray(numbers, dtype=np.int64))
            numbers.clear()


def _numbered(counts: Numbers) -> tuple[Numbers, Numbers]:
    """Return for each of several things with so many parts its number, once for each part, and the number of the part.

    >>> [numbers.tolist() for numbers in _numbered(np.array([2, 0, 1]))]
    [[0, 0, 2], [0, 1, 0]]
    """
    numbers = np.repeat(np.arange(len(counts)), counts)
    return numbers, np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)


def _padded(rows: Sequence[Numbers], fill: int) -> Numbers:
    padded = np.full((len(rows), max(map(len, rows))), fill)
    for row, own in zip(padded, rows, strict=True):
        row[: len(own)] = own
    return padded


def _plain(value: Any) -> Any:
    """Return arrays, and those in a list, as lists of numbers."""
    if isinstance(value, list):
        return list(map(_plain, value))
    return value.tolist() if isinstance(value, np.ndarray) else value


_Portable: TypeAlias = tuple[str, str, int, tuple[int, ...]] | Numbers


def _portable(array: Numbers) -> _Portable:
    """Return an array, or where in a file it is."""
    mapped = array.base
    if not isinstance(mapped, np.memmap) or mapped.filename is None or mapped.shape != array.shape:
        return array
    return str(mapped.filename), array.dtype.str, int(mapped.offset), array.shape


def mapped_array(path: str, kind: str, offset: int, shape: tuple[int, ...]) -> Numbers:
    """Return an array of a file, whose bytes are read when they are looked at."""
    # as a plain array: looking up in a memmap takes several times as long
    return np.asarray(np.memmap(path, dtype=kind, mode="r", offset=offset, shape=shape))


def _opened(
    lists: Mapping[str, _Portable],
    values: Mapping[str, _Portable],
    ends: _Portable,
    places: Numbers,
    sequences: int,
) -> TokenRows:
    def opened(array: _Portable) -> Numbers:
        return mapped_array(*array) if isinstance(array, tuple) else array

    own_lists, own_values = (
        {name: opened(array) for name, array in each.items()} for each in (lists, values)
    )
    return TokenRows(own_lists, opened(ends), own_values, sequences=sequences, places=places)
