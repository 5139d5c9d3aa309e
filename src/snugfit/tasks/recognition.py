"""Rows and scripts as a task looks at them before there is a recipe, and the settings that it proposes for them."""

from __future__ import annotations

import ast
import itertools
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, TypeVar

from snugfit.data.files.file_kinds import PICTURE_SUFFIXES, SOUND_SUFFIXES, is_shards

PLAIN_TEXT = ".txt"
"""A file of one text, without columns."""

AROUND_A_TURN = 70
"""Characters of text whose tokens are about as many as a template writes around a turn."""

CLASS_COLUMNS = ("label", "labels", "class", "category", "target", "sentiment", "intent", "topic", "tag", "y")
"""Names of columns that hold classes; an earlier one is likelier to."""
NAMED_LABEL = 0.8
"""How likely a column of such a name, or one that a setting names, is the label of its row."""

_PROSE_WORDS = 3
_CHARACTERS_OF_A_TOKEN = 3.5
_NUMBER_OR_DATE = re.compile(r"[\s\d.,:/+%eE-]+(?:[TZ][\d:.+]*Z?)?$")


Of = TypeVar("Of")


def _once(method: Callable[[Rows, str], Of]) -> Callable[[Rows, str], Of]:
    """Return a method that is computed once for each column: every task asks the same of all of them."""

    @wraps(method)
    def of_column(self: Rows, column: str) -> Of:
        key = method.__name__, column
        if key not in self.computed:
            self.computed[key] = method(self, column)
        result: Of = self.computed[key]
        return result

    return of_column


@dataclass(frozen=True)
class Rows:
    """The rows of a file that can be read; what was asked of a column is kept in `computed`."""

    path: Path
    columns: tuple[str, ...]
    rows: Sequence[Mapping[str, Any]]
    computed: dict[tuple[str, str], Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def in_folders(self) -> bool:
        """True where the rows are files, in folders named by their classes."""
        return self.path.is_dir() and not is_shards(self.path)

    @_once
    def values(self, column: str) -> list[Any]:
        """Return what stands in a column, without empty cells."""
        cells = (row.get(column) for row in self.rows)
        return [cell for cell in cells if cell is not None and (not isinstance(cell, str) or cell.strip())]

    @_once
    def is_text(self, column: str) -> bool:
        """Return whether a column holds texts alone, which are no numbers and no dates."""
        values = self.values(column)
        texts = [value for value in values if isinstance(value, str)]
        paths = self.names_pictures(column) or self.names_sounds(column)
        prose = not all(map(_NUMBER_OR_DATE.match, texts)) and not paths
        return bool(texts) and len(texts) == len(values) and prose

    @_once
    def names_pictures(self, column: str) -> bool:
        """Return whether a column holds paths of pictures alone."""
        return self._names_files(column, PICTURE_SUFFIXES)

    def names_sounds(self, column: str) -> bool:
        """Return whether a column holds paths of sounds alone."""
        return self._names_files(column, SOUND_SUFFIXES)

    def _names_files(self, column: str, suffixes: Set[str]) -> bool:
        return bool(values := self.values(column)) and all(
            Path(str(value)).suffix.lower() in suffixes for value in values
        )

    def is_prose(self, column: str) -> bool:
        """Return whether a column holds texts of some words."""
        return self.is_text(column) and self.words(column) >= _PROSE_WORDS

    @_once
    def words(self, column: str) -> float:
        """Return the median number of words in a column of texts."""
        return statistics.median(len(text.split()) for text in self.values(column))

    @_once
    def classes(self, column: str) -> Counter[str]:
        """Return how often each value of a column stands there."""
        return Counter(str(value) for value in self.values(column))

    def class_sizes(self, column: str) -> str:
        """Return how many rows the smallest and the largest class of a column have, in words."""
        counts = self.classes(column).values()
        least, most = min(counts, default=0), max(counts, default=0)
        return f"{least:,}" if least == most else f"{least:,} to {most:,}"

    def repeated(self, paths: str | None) -> str | None:
        """Return the one column beside that of paths that has the same few values again and again; None where there is no such, or more than one."""
        others = [column for column in self.columns if column != paths]
        columns = [
            column for column in others if 2 <= len(self.classes(column)) <= max(2, len(self.rows) // 3)
        ]
        return columns[0] if len(columns) == 1 else None

    @_once
    def counts_rows(self, column: str) -> bool:
        """Return whether a column only numbers the rows: whole, each one more than the one before."""
        values = [str(value) for value in self.values(column)]
        if (
            len(values) < 3
            or len(values) < len(self.rows)
            or not all(value.lstrip("-").isdigit() for value in values)
        ):
            return False
        whole = [int(value) for value in values]
        return all(after - before == 1 for before, after in itertools.pairwise(whole))

    def named(self, names: Sequence[str]) -> str | None:
        """Return the column whose name is one of these, whatever its case; an earlier name wins."""
        columns = {column.strip().casefold(): column for column in self.columns}
        return next((columns[name] for name in names if name in columns), None)

    def characters(self, columns: Sequence[str]) -> list[int]:
        """Return the length of each row's texts."""
        return [sum(len(str(row.get(column) or "")) for column in columns) for row in self.rows]


@dataclass(frozen=True)
class Script:
    """A Python file, which is read and never run."""

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)


@dataclass(frozen=True, kw_only=True)
class Recognition:
    """A task's proposal for rows or a script.

    Args:
        data: settings of the recipe's `data`.
        reason: what was seen, in words.
        score: from 0 to 1; the task with the highest is taken.
        examples: about how many there are; None where that is not known.
        model: package.module:function of the model, where the source has it.
        settings: others of the recipe.
        comments: of settings, by their whole names, in place of what the settings mean in general.
        notes: what to know of the source before a run.
    """

    data: Mapping[str, Any]
    reason: str
    score: float
    examples: int | None = None
    model: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    comments: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


def columns_of(value: Any) -> tuple[str, ...]:
    """Return columns as a recipe gives them: one name or several."""
    return (value,) if isinstance(value, str) else tuple(value)


def length_of_rows(characters: Sequence[int]) -> int:
    """Return `max_length` for examples of so many characters: a power of two of tokens in which 19 of 20 fit, 512 at most.

    >>> length_of_rows([100] * 19 + [5000]), length_of_rows([10]), length_of_rows([9000])
    (32, 32, 512)
    """
    usual = sorted(characters)[int(0.94 * (len(characters) - 1))] if characters else 0
    return min(512, max(32, _power_of_two(usual / _CHARACTERS_OF_A_TOKEN + 2)))


def length_of_conversations(characters: Sequence[int]) -> dict[str, Any]:
    """Return `max_length` for conversations of so many characters, and that the prompts of longer ones are cut, where some may be.

    >>> length_of_conversations([60]), length_of_conversations([60, 5000])
    ({'max_length': 32}, {'max_length': 32, 'too_long': 'cut_prompt'})
    """
    length = length_of_rows(characters)
    longest = max(characters, default=0) / _CHARACTERS_OF_A_TOKEN + 2
    return {"max_length": length, **({"too_long": "cut_prompt"} if longest > length else {})}


def characters_written(row: Mapping[str, Any], columns: Sequence[str]) -> int:
    """Return the characters of columns of text or of turns, with those that a template writes around each."""
    from snugfit.data.texts.conversations import texts_of_turns

    turns = [text for each in columns for text in texts_of_turns(row.get(each)) or [str(row.get(each) or "")]]
    return sum(len(text) + AROUND_A_TURN for text in turns)


def length_of_stream(characters: int) -> int:
    """Return `max_length` for blocks of one stream of text: 256 tokens, or fewer where there would be less than 40 blocks.

    >>> length_of_stream(10**6), length_of_stream(6000)
    (256, 32)
    """
    tokens = characters / _CHARACTERS_OF_A_TOKEN
    return min(256, max(16, _power_of_two(tokens / 40) // 2))


def blocks_of(characters: int) -> int:
    """Return about how many blocks of `length_of_stream` a stream of text has.

    >>> blocks_of(6000)
    53
    """
    return int(characters / _CHARACTERS_OF_A_TOKEN / length_of_stream(characters))


def of_plain_text(source: Rows, score: float) -> Recognition | None:
    """Return what a task that learns blocks of text makes of a file of one text; None of one with columns."""
    if source.path.suffix.lower() != PLAIN_TEXT:
        return None
    size = sum(source.characters(source.columns))
    return Recognition(
        data={"max_length": length_of_stream(size)},
        reason=f"{size:,} characters of plain text",
        score=score,
        examples=blocks_of(size),
    )


def _power_of_two(value: float) -> int:
    """Return the smallest power of two that is at least `value`."""
    return 1 << max(0, int(-(-value // 1)) - 1).bit_length()
