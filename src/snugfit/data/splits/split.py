"""Training and validation rows by a fraction: stratified, by groups or by time, and the same for the same seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Sequence

from snugfit.core.random import derive_seed
from snugfit.data.splits.hold_out import check_fraction
from snugfit.errors import DataError


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
