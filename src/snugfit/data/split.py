"""Training and validation rows by a fraction: stratified, and the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence

from snugfit.core.random import derive_seed
from snugfit.errors import DataError, SettingError


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
    missing = max(round(fraction * len(classes)), 1) - sum(counts.values())
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


def check_fraction(fraction: float, setting: str = "data.validation") -> None:
    """See that a fraction lies strictly between 0 and 1.

    Raises:
        SettingError: it does not.
    """
    if not 0.0 < fraction < 1.0:
        raise SettingError(
            setting,
            f"{fraction:g} is not a fraction between 0 and 1",
            "Write 0.1 for a tenth of the rows, a file, or null for no validation.",
        )
