"""Rows that are balanced by a column: each of its values has the same part of the examples, however many rows it has."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from snugfit.data.examples import Balance, Examples, whole_examples
from snugfit.data.mixture import mixed
from snugfit.data.splits.sides import groups_of
from snugfit.errors import DataError
from snugfit.units import counted

BALANCE = "data.balance"
_OFTEN = 20
"""Times that a row comes in an epoch, from which that is said."""
_SHOWN = 5


def balance_rows(dataset: Any, column: str) -> list[str]:
    """Have the examples of a data set drawn so that each value of a column has the same part of them; returns what should be known of it.

    Raises:
        DataError: the examples are made of no rows with columns, have no such column, a row has no value in it, all have the same one, or about
            each has one of its own.
    """
    examples = whole_examples(dataset)
    if examples is None or examples.table is None:
        raise DataError(
            BALANCE,
            "balances rows by a column, and the examples are blocks of text, or parts of a data set, that have none",
            "Remove it; several sources are balanced by weights.",
        )
    names = [str(name) for (name,) in groups_of(examples, (column,), BALANCE)]
    counts = Counter(names)
    _check(counts, column, examples)
    number = {name: place for place, name in enumerate(sorted(counts))}
    numbers = np.array([number[name] for name in names], dtype=np.int64)
    examples.balance = Balance(column, tuple(number), numbers)
    return _often(examples, column)


def _check(counts: Counter[str], column: str, examples: Examples) -> None:
    if len(counts) == 1:
        (name,) = counts
        raise DataError(
            BALANCE,
            f"all rows to train on have {column} '{name}', so there is nothing to balance",
            "Remove it, or name another column.",
        )
    if len(counts) > len(examples) / 2:
        raise DataError(
            BALANCE,
            f"'{column}' has {counted(len(counts), 'value')} in {counted(len(examples), 'row')}, so that about each row has one of its own",
            "Name a column with a few values.",
        )


def _often(examples: Examples, column: str) -> list[str]:
    """Return which values have so few rows that each comes often in an epoch."""
    draws = mixed(examples)
    assert draws is not None
    often = [each for each in draws.by_value(len(draws)) if each["epochs"] >= _OFTEN]
    if not often:
        return []
    shown = ", ".join(
        f"{each['name']} ({counted(each['rows'], 'row')}, {each['epochs']:,.0f} times)"
        for each in often[:_SHOWN]
    )
    return [
        f"balanced by {column}, each row of {shown}{' …' if len(often) > _SHOWN else ''} comes that often in an epoch: it may be learned by heart."
    ]
