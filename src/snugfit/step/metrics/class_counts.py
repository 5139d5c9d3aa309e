"""Counts of a data set's classes, in the forms that a loop of one's own has them in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from torch import Tensor

from snugfit.errors import SettingError

ClassCounts = Mapping[str, int] | Sequence[int] | Tensor
"""Rows by the name of their class, or in the order of the labels, such as `torch.bincount` gives them."""


def counts_by_name(counts: ClassCounts | None) -> dict[str, int] | None:
    """Return the counts by the names of the classes, in the order of the labels; without names, a class has its label's number for one.

    Raises:
        SettingError: they are in another form.

    >>> counts_by_name([5, 9, 2])
    {'0': 5, '1': 9, '2': 2}
    """
    if counts is None:
        return None
    given: Any = counts.tolist() if hasattr(counts, "tolist") else counts
    is_list = isinstance(given, Sequence) and not isinstance(given, (str, bytes)) and len(given) > 0
    if isinstance(given, Mapping) or is_list:
        by_name = dict(given) if isinstance(given, Mapping) else {str(k): v for k, v in enumerate(given)}
        if all(isinstance(each, Integral) and int(each) >= 0 for each in by_name.values()):
            return {str(name): int(count) for name, count in by_name.items()}
    raise SettingError(
        "class_counts",
        f"must be whole numbers of rows, found {counts!r}",
        "Give them by the name of their class, {'no': 900, 'yes': 100}, or in the order of the labels, [900, 100].",
    )
