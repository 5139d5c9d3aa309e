"""The two sides of rows: those to train on and those to validate on, by a share, by groups or by time, and without leaks."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from numbers import Real
from typing import Any, NamedTuple

from snugfit.core.random import derive_seed
from snugfit.data.bad_rows import BadRow, shorten
from snugfit.data.examples import Examples
from snugfit.data.series.time_steps import are_counted, read_moment
from snugfit.data.sources import RowSource, Table, check_columns
from snugfit.data.splits.hold_out import (
    GROUP,
    SHARE,
    SHARES,
    TIME,
    VALIDATION,
    HoldOut,
    check_fraction,
    share_of,
)
from snugfit.data.splits.leaks import Inputs, LeakSettings, Side, without_leaks
from snugfit.data.tables.table_cells import is_gap, parsed_cell
from snugfit.errors import DataError
from snugfit.units import counted

Validation = float | HoldOut | RowSource | None
"""A share of the training rows to validate on, a source of its own, or none."""

_FAR = 0.5
"""Part of the share that was asked for, by which what is held out may miss it unsaid."""


def check_validation(validation: Validation) -> None:
    """See that a share to validate on is a fraction.

    Raises:
        SettingError: it is none.
    """
    if isinstance(validation, (int, float)):
        check_fraction(validation)


class Sides(NamedTuple):
    """The examples to train on and those to validate on.

    `places` are those of the examples to train on in the first part, `shown` the places, in the last part that was read, of rows to show: those
    held out, or those to train on where none are. `warnings` are what should be known of them.
    """

    train: Examples
    validation: Examples
    places: Sequence[int]
    shown: Sequence[int]
    warnings: tuple[str, ...] = ()


def make_sides(
    parts: Sequence[Examples],
    validation: Validation,
    seed: int,
    *,
    inputs: Inputs | None = None,
    leaks: LeakSettings | None = None,
    classes: Sequence[Hashable] | None = None,
) -> Sides:
    """Return the sides of examples: of one part that is split, of several sources each in proportion, or of two parts.

    Args:
        parts: the examples of `data.train`, and of a source of its own for those to validate on.
        inputs: of the examples of the parts; None where they are not compared.
        classes: of the examples of the first part, whose shares both sides keep; None for rows without classes.
    Raises:
        DataError: rows cannot be held out as asked for, or leak and are not to.
    """
    whole = parts[0]
    places: Sequence[int] = range(len(whole))
    aside: Sequence[int] = ()
    messages: list[str] = []
    part = 0
    if isinstance(validation, SHARES) and len(whole):
        places, aside, messages = _split(whole, validation, seed, classes)
        held_out = whole.at(aside)
    elif len(parts) > 1:
        part, held_out, aside = 1, parts[1], range(len(parts[1]))
    else:
        held_out = whole.at(())
    if inputs is not None:
        remaining, of_leaks = without_leaks(
            leaks or LeakSettings(),
            inputs,
            Side(0, places, whole.origin),
            Side(part, aside, parts[part].origin),
        )
        if classes is not None and len(remaining) < len(places):
            _check_classes(classes, places, remaining)
        places, messages = remaining, [*messages, *of_leaks]
    shown = aside if len(aside) else places if len(parts) == 1 else aside
    train = whole if len(places) == len(whole) else whole.at(places)
    return Sides(train, held_out, places, shown, tuple(messages))


def places_by_source(
    table: Table,
    parts: Sequence[Examples],
    held_out: Examples | None,
    validation: Validation,
    seed: int,
    each: Callable[[int], tuple[Sequence[int], Sequence[int]]],
    *,
    inputs: Inputs,
    leaks: LeakSettings,
) -> tuple[list[tuple[list[int], list[int]]], tuple[str, ...]]:
    """Return, of each source of a table, the places to train on and those held out, and what should be known of them.

    Args:
        parts: the examples of each source.
        held_out: those of `data.validation`, where it is a source of its own.
        each: both sides of one source by its number, where it is split by a fraction alone.
        inputs: of all sources together.
    Raises:
        DataError: as for `make_sides`.
    """
    whole = Examples.joined(table, parts)
    messages: list[str] = []
    starts = list(itertools.accumulate(map(len, parts), initial=0))
    if isinstance(validation, HoldOut) and (validation.group or validation.time):
        places, aside, messages = _split(whole, validation, seed, None)
    else:
        sides = [each(number) for number in range(len(parts))]
        places, aside = (
            [starts[number] + place for number, both in enumerate(sides) for place in both[side]]
            for side in (0, 1)
        )
    other = (
        Side(0, aside, whole.origin) if held_out is None else Side(1, range(len(held_out)), held_out.origin)
    )
    places, of_leaks = without_leaks(leaks, inputs, Side(0, places, whole.origin), other)
    cut = [
        (
            [place - start for place in places if start <= place < end],
            [place - start for place in aside if start <= place < end],
        )
        for start, end in itertools.pairwise(starts)
    ]
    return cut, (*messages, *of_leaks)


def _check_classes(classes: Sequence[Hashable], before: Sequence[int], after: Sequence[int]) -> None:
    """See that no class has lost all its rows.

    Raises:
        DataError: one has.
    """
    gone = {classes[place] for place in before} - {classes[place] for place in after}
    if gone:
        raise DataError(
            "data.leaks",
            f"all rows of {', '.join(sorted(map(repr, gone)))} are among those to validate on, so that dropping them leaves "
            "nothing to learn",
            "Give other rows to validate on.",
        )


def _split(
    examples: Examples, validation: float | HoldOut, seed: int, classes: Sequence[Hashable] | None
) -> tuple[list[int], list[int], list[str]]:
    """Return the places of both sides, and what should be said of them."""
    strata = examples.numbers if classes is None else examples.strata(classes)
    share = share_of(validation)
    if isinstance(validation, HoldOut) and validation.time is not None:
        return _by_time(examples, validation.time, share, classes)
    if isinstance(validation, HoldOut) and validation.group:
        named = " and ".join(validation.group)
        groups = groups_of(examples, validation.group)
        places, aside = split_groups(groups, strata, share, seed)
        if not aside:
            count = len(set(groups))
            reason = (
                f"all rows have one {named}" if count == 1 else f"each of {count:,} groups has a class alone"
            )
            raise DataError(
                f"{VALIDATION}.{GROUP}",
                f"{reason}, and a group is held out whole, so that none can be spared",
                "Name another column, or give a file of its own for validation.",
            )
        held = len({groups[place] for place in aside})
        return (
            places,
            aside,
            _far_off(len(aside), len(examples), share, f"{counted(held, 'whole group')} by {named}"),
        )
    if len(set(examples.rows)) < len(examples):  # the examples of one row stay together
        places, aside = split_groups(list(examples.rows), strata, share, seed)
        if aside:
            return places, aside, []
    return *split_rows(strata, share, seed), []


def _far_off(count: int, total: int, share: float, what: str) -> list[str]:
    if abs(count / total - share) <= _FAR * share:
        return []
    return [
        f"{count / total:.1%} of the rows are held out ({what}), where {VALIDATION}.{SHARE} asks for {share:.1%}."
    ]


def groups_of(
    examples: Examples, columns: Sequence[str], setting: str = f"{VALIDATION}.{GROUP}"
) -> list[tuple[str, ...]]:
    """Return the group of each example: the cells of its row in these columns.

    Raises:
        DataError: a column is not there, or a row is of no group; names file and line.
    """
    table, rows = _rows_of(examples, columns, setting)
    groups: list[tuple[str, ...]] = []
    for place, row in enumerate(rows):
        cells = [table.rows[row].get(column) for column in columns]
        keys = [_key(cell) for cell in cells]
        empty = [column for column, key in zip(columns, keys, strict=True) if not key]
        if empty:
            raise DataError(
                setting,
                f"{examples.origin(place)}: the row has no {' or '.join(empty)}",
                "Fill it, or leave the row out.",
            )
        groups.append(tuple(keys))
    return groups


_WHOLE = re.compile(r"-?\d+\.0+")


def _key(cell: Any) -> str:
    """Return a cell as a name: a whole number is one name however it is written; empty where nothing stands there."""
    if not isinstance(cell, str) and is_gap(cell):
        return ""
    # NumPy's numbers are none of Python's; and pandas writes whole numbers beside gaps as 7.0
    whole = isinstance(cell, Real) and not isinstance(cell, bool) and cell == cell // 1
    text = str(int(cell)) if whole else str(cell).strip()
    return str(int(text.partition(".")[0])) if _WHOLE.fullmatch(text) else text


def _by_time(
    examples: Examples, column: str, share: float, classes: Sequence[Hashable] | None
) -> tuple[list[int], list[int], list[str]]:
    moments = moments_of(examples, column)
    places, aside = split_times(moments, share)
    if not aside:
        raise DataError(
            f"{VALIDATION}.{TIME}",
            f"all rows have one {column}, and the last ones are to be held out",
            "Name another column, or give a file of its own for validation.",
        )
    if classes is not None:
        missing = {classes[place] for place in aside} - {classes[place] for place in places}
        if missing:
            names = ", ".join(sorted(map(repr, missing))[:_MOST_NAMES])
            raise DataError(
                f"{VALIDATION}.{TIME}",
                f"all rows of {names} are among the last ones, which are held out, so that it cannot be learned",
                "Lower data.validation.share, or give a file of its own for validation.",
            )
    first = min(aside, key=moments.__getitem__)
    what = f"those from {column} {_cell(examples, first, column)} on"
    return places, aside, _far_off(len(aside), len(examples), share, what)


_MOST_NAMES = 5


def _cell(examples: Examples, place: int, column: str) -> str:
    table, rows = _rows_of(examples, (column,), f"{VALIDATION}.{TIME}")
    return shorten(table.rows[rows[place]][column])


def moments_of(examples: Examples, column: str, setting: str = f"{VALIDATION}.{TIME}") -> list[float]:
    """Return the time of each example: the number in a column of its row, or a date in the form of ISO 8601.

    Raises:
        DataError: a column is not there, or a cell is neither; names file and line.
    """
    table, rows = _rows_of(examples, (column,), setting)
    cells = [table.rows[row].get(column) for row in rows]
    numbers = [parsed_cell(cell) for cell in cells]
    counted = are_counted(cells) or sum(isinstance(number, float) for number in numbers) > len(numbers) / 2
    moments: list[float] = []
    for place, (cell, number) in enumerate(zip(cells, numbers, strict=True)):
        try:
            moments.append(
                _number(column, cell, number)
                if counted
                else read_moment(column, {column: cell}, counted=False)
            )
        except BadRow as bad:
            raise DataError(
                setting,
                f"{examples.origin(place)}: {bad.detail}",
                "Correct it, name another column, or leave the row out.",
            ) from bad
    return moments


def _number(column: str, cell: Any, number: float | str | None) -> float:
    if number is None:
        raise BadRow("missing time", f"{column} is empty")
    if isinstance(number, str):
        raise BadRow("unusable time", f"{column} is {shorten(cell)!r}, no number as in other rows")
    return number


def _rows_of(examples: Examples, columns: Sequence[str], setting: str) -> tuple[Table, Sequence[int]]:
    """Return the table of examples and the places of their rows in it.

    Raises:
        DataError: they are of no rows with columns, or have none of that name.
    """
    if examples.table is None:
        raise DataError(
            setting,
            f"{examples.source} is one text, which has no columns",
            "Write a fraction: its end is held out.",
        )
    for column in dict.fromkeys(columns):
        check_columns(examples.table, {setting: [column]})
    return examples.table, examples.table_rows


def held_out_rows(rows: int, fraction: float) -> int:
    """Return how many of the rows a fraction of them is, at least one.

    >>> held_out_rows(32, 0.1), held_out_rows(3, 0.1)
    (3, 1)
    """
    return max(round(fraction * rows), 1)


def split_rows(
    classes: Sequence[Hashable], fraction: float, seed: int, setting: str = "data.validation"
) -> tuple[list[int], list[int]]:
    """Draw `fraction` of the rows for validation, from each class in proportion.

    The number of validation rows is the rounded fraction of all; classes share it by largest remainder, and
    each keeps at least one training row. Both results are in ascending order.

    Args:
        classes: the class of each row; one and the same for rows without classes.
    Raises:
        SettingError: the fraction is not between 0 and 1.
        DataError: there are too few rows to give any away.

    >>> split_rows(["a", "a", "a", "b", "b", "b"], 1 / 3, seed=0)
    ([1, 2, 3, 4], [0, 5])
    """
    check_fraction(fraction, setting)
    members: dict[Hashable, list[int]] = {}
    for index, name in enumerate(classes):
        members.setdefault(name, []).append(index)
    shares = {name: fraction * len(rows) for name, rows in members.items()}
    counts = {name: int(share) for name, share in shares.items()}
    missing = held_out_rows(len(classes), fraction) - sum(counts.values())
    # largest remainder first; ties go to the larger class, then to the one met first (sorting is stable)
    order = sorted(members, key=lambda name: (counts[name] - shares[name], -len(members[name])))
    while missing > 0:
        open_classes = [name for name in order if counts[name] < len(members[name]) - 1]
        if not open_classes:
            break
        for name in open_classes[:missing]:
            counts[name] += 1
            missing -= 1
    validation: set[int] = set()
    for place, (name, rows) in enumerate(members.items()):
        drawn = random.Random(derive_seed(seed, "split", place)).sample(rows, counts[name])
        validation.update(drawn)
    if not validation:
        raise DataError(
            setting,
            f"{len(classes)} rows are too few to set {fraction:g} of them aside: every class keeps one row for "
            "training",
            "Give more rows, or a file of its own for validation.",
        )
    return [index for index in range(len(classes)) if index not in validation], sorted(validation)


def split_groups(
    groups: Sequence[Hashable], classes: Sequence[Hashable], fraction: float, seed: int
) -> tuple[list[int], list[int]]:
    """Draw whole groups of rows for validation, so that the share of each class comes as near to `fraction` as they allow.

    Groups are looked at in an order drawn from the seed. One is held out where that brings the held-out rows of the classes nearer to
    their shares, and leaves a row of each class to train on. Where each is larger than that, the smallest that may go is held out.

    Args:
        groups: the group of each row.
        classes: the class of each row; one and the same for rows without classes.
    Returns:
        The rows to train on and those held out, in ascending order. The second is empty where no group can be spared.

    >>> split_groups(["a", "a", "b", "b", "c", "c"], [0] * 6, 1 / 3, seed=0)
    ([0, 1, 2, 3], [4, 5])
    """
    members: dict[Hashable, list[int]] = {}
    for row, name in enumerate(groups):
        members.setdefault(name, []).append(row)
    sizes = Counter(classes)
    left, missing = dict(sizes), {name: fraction * size for name, size in sizes.items()}
    order = list(members)
    random.Random(derive_seed(seed, "split groups")).shuffle(order)

    def counts_of(group: Hashable) -> Counter[Hashable]:
        return Counter(classes[row] for row in members[group])

    def may_go(counts: Counter[Hashable]) -> bool:
        return all(count < left[name] for name, count in counts.items())

    held_out: set[int] = set()
    for group in order:
        counts = counts_of(group)
        # of a sum over classes of (missing rows)² / rows, the change by holding out this group
        change = sum(count * (count - 2 * missing[name]) / sizes[name] for name, count in counts.items())
        if change < 0 and may_go(counts):
            held_out.update(members[group])
            for name, count in counts.items():
                left[name] -= count
                missing[name] -= count
    if not held_out:
        able = [group for group in order if may_go(counts_of(group))]
        held_out.update(members[min(able, key=lambda group: len(members[group]))] if able else ())
    return [row for row in range(len(groups)) if row not in held_out], sorted(held_out)


def split_times(moments: Sequence[float], fraction: float) -> tuple[list[int], list[int]]:
    """Hold out the last rows by their times; rows of one time stay together, on the side that brings the share nearer to `fraction`.

    Returns:
        The rows to train on and those held out, in ascending order. The second is empty where all times are equal.

    >>> split_times([3, 1, 2, 3, 1], 0.4), split_times([1, 1, 1], 0.5)
    (([1, 2, 4], [0, 3]), ([0, 1, 2], []))
    """
    wanted, counts = fraction * len(moments), Counter(moments)
    first, after, best = None, 0, float("inf")
    for moment in sorted(counts, reverse=True)[:-1]:  # the earliest is trained on
        after += counts[moment]
        if abs(after - wanted) >= best:
            break
        first, best = moment, abs(after - wanted)
    if first is None:
        return list(range(len(moments))), []
    held_out = [row for row, moment in enumerate(moments) if moment >= first]
    return [row for row, moment in enumerate(moments) if moment < first], held_out
