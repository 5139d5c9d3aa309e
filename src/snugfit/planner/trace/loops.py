"""Loops over parts that are alike: which of them a dry run needs, and how often each of those counts.

What is in memory at some time follows from a part and the one before it. So it is enough to run parts of which each neighbours are
neighbours in the loop too, and all neighbours of the loop are among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence


def needed(kinds: Sequence[Hashable]) -> list[int]:
    """Return the parts that are run: the first and the last one, and each kind after each other that comes so.

    Args:
        kinds: of all parts, in their order.

    >>> needed("AAAAAAAA"), needed("AAAAAAAB"), needed("AABAABAABAAB")
    ([0, 1, 7], [0, 1, 7], [0, 1, 2, 3, 11])
    """
    if not kinds:
        return []
    parts, last = [0], len(kinds) - 1
    seen: set[tuple[Hashable, Hashable]] = set()
    while parts[-1] < last:
        here = parts[-1]
        best = place = here + 1
        while place < last and (kinds[place - 1], kinds[place]) in seen:
            place += 1
            if kinds[place - 1] == kinds[here]:
                best = place
        seen.add((kinds[here], kinds[best]))
        parts.append(best)
    return parts


def counts(kinds: Sequence[Hashable], run: Sequence[int]) -> list[int]:
    """Return how often each part that is run counts: of each kind the second one, or the only one, for those left out too.

    The first part of all counts once where it has its like, as what it makes may stay for the others.

    >>> counts("AAAAAAAA", [0, 1, 7]), counts("AABAABAABAAB", [0, 1, 2, 3, 11])
    ([1, 6, 1], [1, 6, 3, 1, 1])
    """
    left = Counter(kinds)
    left.subtract(kinds[place] for place in run)
    numbers = [1] * len(run)
    for number, place in enumerate(run):
        alone = number == 0 and any(kinds[other] == kinds[place] for other in run[1:])
        if not alone:
            numbers[number] += left.pop(kinds[place], 0)
    return numbers
