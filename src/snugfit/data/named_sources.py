"""Several sources of rows that are trained on together: their names, their weights, and when an epoch of them ends."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import PurePath
from typing import Any, Literal, TypeAlias, get_args

from snugfit.core.settings import shown
from snugfit.data.splits.hold_out import is_hold_out
from snugfit.errors import SettingError, nearest

TRAIN = "data.train"
Stopping = Literal["first_exhausted", "all_exhausted"]
Written: TypeAlias = str | Sequence[str] | Mapping[str, Any]
"""A source, a list of sources, or sources by their names, each with its settings."""

_NAME = r"[A-Za-z_][\w-]*"
_FORM = "Write each as NAME: FILE, or as NAME: {from: FILE, weight: 1}."
LOSS_OF = "loss/"
"""How the loss of one of several sources is named, before the name of the source."""

FROM, WEIGHT, RENAME = _KEYS = ("from", "weight", "rename")


@dataclass(frozen=True)
class Source:
    """A source of rows among others.

    Args:
        name: that it is spoken of by.
        file: the name of the file or data set, as a single source has it.
        weight: its part of the examples, beside the weights of the others; None where every row is trained on once an epoch.
        rename: the names that its columns get, by their own.
    """

    name: str
    file: str
    weight: Fraction | None = None
    rename: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_named(self) -> bool:
        """True where a recipe names it; a source of a list has the name of its file."""
        return re.fullmatch(_NAME, self.name) is not None


@dataclass(frozen=True)
class Sources:
    """Sources of rows that are trained on together.

    Args:
        each: in their order; all have a weight, or none has.
        stopping: when an epoch ends, where they have weights: with the last row of the first source that is through, or of the last one.
    """

    each: tuple[Source, ...]
    stopping: Stopping = "first_exhausted"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(source.name for source in self.each)

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(source.file for source in self.each)

    @property
    def weights(self) -> tuple[Fraction, ...] | None:
        """The weights, or None where every row is trained on once an epoch."""
        weights = tuple(source.weight for source in self.each if source.weight is not None)
        return weights or None

    def __str__(self) -> str:
        return " and ".join(self.files)


@dataclass(frozen=True)
class RowSources:
    """The sources of rows by the rows' ids, which count over all of them.

    Args:
        starts: the first row of each.
    """

    names: tuple[str, ...]
    starts: tuple[int, ...]

    def number(self, row: int) -> int:
        """Return the number of the source of a row.

        >>> RowSources(("a", "b"), (0, 5)).number(7)
        1
        """
        return bisect_right(self.starts, row) - 1


def files_of(written: Written) -> tuple[str, ...]:
    """Return the names of the files and data sets of sources as a recipe has them.

    >>> files_of("a.csv"), files_of({"chats": {"from": "a.csv", "weight": 3}, "docs": "b.csv"})
    (('a.csv',), ('a.csv', 'b.csv'))
    """
    if isinstance(written, str):
        return (written,)
    if is_hold_out(written):
        return ()
    entries = written.values() if isinstance(written, Mapping) else written
    return tuple(entry[FROM] if isinstance(entry, Mapping) else entry for entry in entries)


def with_files(written: Any, changed: Mapping[str, str]) -> Any:
    """Return sources as a recipe has them with other names of files; what is none is left as it is, for `sources_of` to refuse.

    >>> with_files(["a.csv", {"from": "b.csv"}], {"a.csv": "/a.csv", "b.csv": "/b.csv"})
    ('/a.csv', {'from': '/b.csv'})
    """
    if isinstance(written, str):
        return changed.get(written, written)
    if isinstance(written, Mapping):
        if isinstance(written.get(FROM), str):
            return {**written, FROM: with_files(written[FROM], changed)}
        return {name: with_files(entry, changed) for name, entry in written.items()}
    if isinstance(written, (list, tuple)):
        return tuple(with_files(entry, changed) for entry in written)
    return written


def texts_in(written: Any) -> Iterator[str]:
    """Yield what may be names of files in sources as a recipe has them, whatever else is wrong with it."""
    if isinstance(written, str):
        yield written
    elif isinstance(written, (list, tuple)):
        yield from (entry for entry in written if isinstance(entry, str))
    elif isinstance(written, Mapping) and not is_hold_out(written):
        for entry in written.values():
            place = entry.get(FROM) if isinstance(entry, Mapping) else entry
            if isinstance(place, str):
                yield place


def sources_of(
    written: Written, stopping: Stopping = "first_exhausted", setting: str = TRAIN
) -> str | Sources:
    """Return the source that a recipe has, or its sources.

    Args:
        setting: that holds them; only rows to train on have weights.
    Raises:
        SettingError: they cannot be read as such; names the setting down to that of one source.

    >>> sources_of({"chats": {"from": "a.jsonl", "weight": 3}, "docs": {"from": "b.jsonl", "weight": 1}}).weights
    (Fraction(3, 1), Fraction(1, 1))
    """
    if isinstance(written, str):
        _check_stopping(stopping)
        return written
    if not written:
        raise SettingError(setting, "has no source", "Name at least one file.")
    if isinstance(written, Mapping):
        if FROM in written:
            raise SettingError(setting, "has the settings of a source and not its name", _FORM)
        sources = tuple(_source(name, entry, setting) for name, entry in written.items())
    else:
        sources = tuple(map(Source, _names(written), written))
    twice = [file for file, count in Counter(source.file for source in sources).items() if count > 1]
    if twice:
        raise SettingError(setting, f"names {twice[0]} twice", "Name it once.")
    _check_weights(sources, stopping, setting)
    return Sources(sources, stopping)


def _source(name: str, entry: Any, setting: str) -> Source:
    here = f"{setting}.{name}"
    if not re.fullmatch(_NAME, name):
        raise SettingError(
            setting, f"'{name}' is no name of a source", f"Take letters, digits, _ and -. {_FORM}"
        )
    if isinstance(entry, str):
        return Source(name, _file(entry, here))
    if not isinstance(entry, Mapping):
        raise SettingError(here, f"must be a source, found {shown(entry)}", _FORM)
    for key in entry:
        if key not in _KEYS:
            raise SettingError(f"{here}.{key}", "there is no such setting", nearest(str(key), _KEYS))
    if FROM not in entry:
        raise SettingError(f"{here}.{FROM}", "is missing", "Name the file or data set.")
    weight = entry.get(WEIGHT)
    if weight is not None and not _is_weight(weight):
        raise SettingError.must_be(f"{here}.{WEIGHT}", "a positive number", shown(weight))
    rename = entry.get(RENAME, {})
    if not isinstance(rename, Mapping) or not all(isinstance(column, str) for column in rename.values()):
        raise SettingError.must_be(
            f"{here}.{RENAME}", "new names of columns by their old ones", shown(rename)
        )
    # as it is written: the nearest float of 0.1 is no tenth
    exact = None if weight is None else Fraction(str(weight))
    return Source(name, _file(entry[FROM], f"{here}.{FROM}"), exact, dict(rename))


def _file(value: Any, setting: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SettingError.must_be(setting, "the name of a file or data set", shown(value))
    return value


def _is_weight(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 < value < float("inf")


def _check_weights(sources: Sequence[Source], stopping: Stopping, setting: str) -> None:
    bare = [source for source in sources if source.weight is None]
    weighed = next((source for source in sources if source.weight is not None), None)
    if weighed is not None and setting != TRAIN:
        raise SettingError(
            f"{setting}.{weighed.name}.{WEIGHT}",
            "is given, and every row to validate on is scored once",
            "Remove it: each source has a loss of its own.",
        )
    if bare and len(bare) < len(sources):
        raise SettingError(
            f"{TRAIN}.{bare[0].name}.{WEIGHT}",
            "is missing, and other sources have a weight",
            "Give every source a weight, or none of them: then every row is trained on once an epoch.",
        )
    if bare:
        _check_stopping(stopping)


def _check_stopping(stopping: Stopping) -> None:
    """Refuse a strategy that would be ignored, as an epoch has every row once."""
    if stopping != get_args(Stopping)[0]:
        raise SettingError(
            "data.stopping_strategy",
            f"is {stopping}, and {TRAIN} has no sources with weights: an epoch has every row once",
            "Remove it, or give each source a weight.",
        )


def _names(files: Sequence[str]) -> tuple[str, ...]:
    """Return the names that files are spoken of by: without their folders, where that tells them apart."""
    names = tuple(file if "://" in file else PurePath(file).name for file in files)
    return names if len({*names}) == len(names) else tuple(files)
