"""Examples and the rows that they come from: the source's own index, file and line, whatever part of it is trained on; and views of examples that are drawn."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset

from snugfit.core.random import derive_seed, preserved_randomness, seed_device
from snugfit.data.named_sources import Sources
from snugfit.data.sources import Table
from snugfit.data.texts.spooled_numbers import Numbers
from snugfit.data.texts.token_rows import ArrayExamples, JoinedArrays
from snugfit.system.user_objects import is_python_path

ORIGIN = "snugfit.origin"
"""A column of rows that were written out of another source: its name, the row's index there and its line."""


_CPU = torch.device("cpu")
FILE = "file"
NO_LINE = 0
"""The line of an example whose source has none, beside others that have."""


@dataclass(frozen=True, eq=False)
class Balance:
    """The values of a column by which examples are balanced.

    Args:
        names: of the values, in order.
        numbers: the number of each example's value.
    """

    column: str
    names: tuple[str, ...]
    numbers: Numbers


class Examples(Sequence[Any]):
    """Examples in memory, or mapped into it, with their source.

    Args:
        source: a file, or the Python function that made the rows.
        rows: the index in the source of each example's row, counted from 0.
        lines: the line in the file on which each example's row begins, None where rows have no lines.
        unit: what `rows` counts; FILE where each example is a file, whose path it has under that name.
        names: of the rows, where they are spoken of by them; an empty one has none.
        sources: the sources, where they are several; `rows` then counts over all of them, in their order.
        starts: the first row of each of them.
        table: the rows as they were read, by whose columns examples are held out or balanced; None where there are none.
        table_rows: the place in it of each example's row.
    """

    def __init__(
        self,
        examples: Sequence[Any],
        source: str,
        rows: Sequence[int],
        lines: Sequence[int] | None = None,
        unit: str = "row",
        *,
        names: Sequence[str] | None = None,
        sources: Sources | None = None,
        starts: Sequence[int] = (),
        table: Table | None = None,
        table_rows: Sequence[int] = (),
    ) -> None:
        self.examples = examples
        self.source, self.unit = source, unit
        self.names, self.sources, self.starts = names, sources, tuple(starts)
        self.table, self.table_rows = table, array("q", table_rows)
        self.balance: Balance | None = None
        self.rows = array("q", rows)
        self.lines = None if lines is None else array("q", lines)

    @classmethod
    def of(cls, examples: Sequence[Any], table: Table, rows: Sequence[int]) -> Examples:
        """Return the examples that were made of these rows of a table."""
        has_origins = ORIGIN in table.columns
        origins = [origin for row in rows if (origin := table.rows[row].get(ORIGIN))] if has_origins else []
        if origins and len(origins) == len(rows):
            sources, own, lines = zip(*origins, strict=True)
            return cls(examples, sources[0], own, lines, table=table, table_rows=rows)
        places = [table.lines[row] for row in rows]
        names = None if table.names is None else [table.names[row] for row in rows]
        return cls(
            examples,
            table.source,
            rows,
            places,
            names=names,
            sources=table.sources,
            starts=table.starts,
            table=table,
            table_rows=rows,
        )

    @classmethod
    def of_files(cls, rows: Sequence[Any], column: str) -> Examples:
        """Return the files that rows name in a column, or are, as examples to predict for."""
        files = [{FILE: row[column] if isinstance(row, Mapping) else row} for row in rows]
        return cls(files, "the rows", range(len(files)))

    @classmethod
    def joined(cls, table: Table, parts: Sequence[Examples], sizes: Sequence[int] | None = None) -> Examples:
        """Return the examples of the sources of a table, one after the other; those of its one source as they are.

        Args:
            sizes: what `rows` of each counts to, where that is not the rows of its table.
        """
        if table.sources is None:
            (part,) = parts
            return part
        starts = table.starts if sizes is None else tuple(itertools.accumulate(sizes, initial=0))[:-1]
        examples: list[Any] = [part.examples for part in parts]
        return cls(
            JoinedArrays.of(examples) or list(itertools.chain.from_iterable(examples)),
            table.source,
            [start + row for start, part in zip(starts, parts, strict=True) for row in part.rows],
            [line for part in parts for line in part.lines or [NO_LINE] * len(part)],
            # a part with lines is spoken of by them
            next((part.unit for part in parts if part.lines is None), parts[0].unit),
            names=[name for part in parts for name in part.names or [""] * len(part)]
            if any(part.names for part in parts)
            else None,
            sources=table.sources,
            starts=starts,
            table=None if any(part.table is None for part in parts) else table,
            table_rows=[
                start + row
                for start, part in zip(table.starts, parts, strict=True)
                for row in part.table_rows
            ],
        )

    def at(self, places: Sequence[int]) -> Examples:
        """Return the examples at these places."""
        lines = None if self.lines is None else [self.lines[place] for place in places]
        rows = [self.rows[place] for place in places]
        examples: Sequence[Any]
        if isinstance(self.examples, ArrayExamples):
            examples = self.examples.at(places)
        else:
            examples = [self.examples[place] for place in places]
        part = Examples(
            examples,
            self.source,
            rows,
            lines,
            self.unit,
            names=None if self.names is None else [self.names[place] for place in places],
            sources=self.sources,
            starts=self.starts,
            table=self.table,
            table_rows=() if self.table is None else [self.table_rows[place] for place in places],
        )
        if self.balance is not None:
            numbers = self.balance.numbers[np.asarray(places, dtype=np.int64)]
            part.balance = replace(self.balance, numbers=numbers)
        return part

    def drop_table(self) -> None:
        """Leave the rows as they were read to the garbage collector: examples are neither held out nor balanced any more."""
        self.table, self.table_rows = None, array("q")

    @property
    def numbers(self) -> list[int]:
        """The number of each example's source among the sources; 0 where there is one."""
        numbers: list[int] = self._numbers().tolist()
        return numbers

    def strata(self, classes: Sequence[Hashable]) -> Sequence[Hashable]:
        """Return the classes of the examples, each apart for each source where they are several: each then gives its part of rows drawn."""
        return classes if self.sources is None else list(zip(self.numbers, classes, strict=True))

    def members(self) -> list[Numbers]:
        """Return the places of the examples of each source."""
        numbers = self._numbers()
        return [np.flatnonzero(numbers == number) for number in range(len(self.starts or (0,)))]

    def _numbers(self) -> Numbers:
        if self.sources is None:
            return np.zeros(len(self), np.int64)
        return np.searchsorted(self.starts, np.frombuffer(self.rows, np.int64), side="right") - 1

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, place: Any) -> Any:
        return self.examples[place]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.examples)

    def origin(self, place: int) -> str:
        """Return where an example comes from.

        >>> Examples(["a", "b"], "films.csv", [4, 7], [6, 12]).origin(1)
        'films.csv:12'
        """
        if self.unit == FILE:
            return str(self[place][FILE])
        if self.names is not None and self.names[place]:
            return self.names[place]
        source, row = self.source, self.rows[place]
        if self.sources is not None:
            number = bisect_right(self.starts, row) - 1
            source, row = self.sources.files[number], row - self.starts[number]
        line = NO_LINE if self.lines is None else self.lines[place]
        return (
            f"{self.unit} {row} of {source}"
            if line == NO_LINE or is_python_path(source)
            else f"{source}:{line}"
        )


class FromRows:
    """A data set that makes each example of what it holds of its row, when it is asked for it.

    Args:
        rows: what it holds; its places are those of the examples.
        alike: whether all examples have one shape.
    """

    def __init__(self, rows: Examples, *, alike: bool = False) -> None:
        self.rows, self.alike = rows, alike

    def __len__(self) -> int:
        return len(self.rows)


class DrawnArrays(FromRows):
    """A data set whose examples are drawn from torch's generator alone, and may be had as arrays with a row for each."""

    def padded(
        self, places: Sequence[int], fill: Mapping[str, int], seed: Callable[[int], None]
    ) -> dict[str, Numbers]:
        """Return the examples at these places, from the same draws as one by one; lists padded on the right.

        Args:
            fill: the number behind the lists of a name; 0 without.
            seed: starts torch's generator for the example of this number among them.
        """
        raise NotImplementedError


class WholeBatches(FromRows):
    """A data set of which a batch is taken at once, which is quicker than example by example."""

    def batch(self, places: Sequence[int]) -> dict[str, Tensor]:
        """Return a batch of the examples at these places."""
        raise NotImplementedError


class Columns(WholeBatches):
    """Rows as whole tensors by their names.

    Args:
        rows: where each comes from.
        tensors: of shape (rows, ...).
    """

    def __init__(self, rows: Examples, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(rows, alike=True)
        self.tensors = tensors

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {name: values[place] for name, values in self.tensors.items()}

    def batch(self, places: Sequence[int]) -> dict[str, Tensor]:
        """Return a batch of the rows at these places."""
        at = torch.tensor(places)
        return {name: values.index_select(0, at) for name, values in self.tensors.items()}


def whole_examples(dataset: Any) -> Examples | None:
    """Return the examples that a data set is made of, all of them; None where it is of others, or a part of some."""
    while isinstance(dataset, FromRows):
        dataset = dataset.rows
    return dataset if isinstance(dataset, Examples) else None


def source_indices(dataset: Any, indices: Sequence[int]) -> list[int]:
    """Return the indices, in the data set that parts were taken of, of examples of a part.

    >>> source_indices(Subset(list("abcd"), [1, 3]), [1, 0])
    [3, 1]
    """
    while isinstance(dataset, (Subset, FromRows)):
        if isinstance(dataset, FromRows):
            dataset = dataset.rows
        else:
            own = dataset.indices
            dataset, indices = dataset.dataset, [own[index] for index in indices]
    if isinstance(dataset, Examples):
        rows = dataset.rows
        return [rows[index] for index in indices]
    return list(indices)


def source_index(dataset: Any, index: int) -> int:
    """Return the same of one example."""
    return source_indices(dataset, [index])[0]


def origin_of(dataset: Any, index: int, split: str) -> str:
    """Return where an example of a data set, or of a part of one, comes from, in words.

    >>> origin_of(Subset(list("abcd"), [1, 3]), 1, "validation")
    'row 3 (validation)'
    """
    dataset, index = place_in_whole(dataset, index)
    origin = dataset.origin(index) if isinstance(dataset, Examples) else f"row {index}"
    return f"{origin} ({split})"


def place_in_whole(dataset: Any, index: int) -> tuple[Any, int]:
    """Return the examples that a data set is made of, or a part of, and the place of one of its own among them."""
    while isinstance(dataset, (Subset, FromRows)):
        if isinstance(dataset, FromRows):
            dataset = dataset.rows
        else:
            dataset, index = dataset.dataset, dataset.indices[index]
    return dataset, index


class DrawnView(FromRows):
    """A view of examples that are drawn anew each time: here by a number and their places, the same whenever they are asked for.

    Args:
        examples: that draw from torch's global generator.
    """

    def __init__(self, examples: Any, number: int) -> None:
        super().__init__(examples.rows, alike=True)
        self._examples, self._number = examples, number

    def __getitem__(self, place: int) -> Any:
        with preserved_randomness(_CPU):
            seed_device(derive_seed(self._number, "view", place), _CPU)
            return self._examples[place]
