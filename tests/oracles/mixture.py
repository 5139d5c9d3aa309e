"""Sources with weights that hand out their rows by turns: a plain loop with fractions, one example after the other.

The turn goes by the rule of Tijdeman 1980, The chairman assignment problem, Discrete Mathematics 32: with parts p of n sources and c examples
handed out by each, of the sources for which k·p - c is 1/(2n - 2) or more after k - 1 examples, that one of the smallest
(1 - 1/(2n - 2) - (k·p - c)) / p has the turn. Each source hands out its rows in their order, and begins again at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def one_epoch(sizes: Sequence[int], weights: Sequence[Fraction], *, first: bool) -> list[int]:
    """Return whose turn it is, until the first source (or every source) has handed out all its rows."""
    if len(sizes) == 1:
        return [0] * sizes[0]
    parts = [weight / sum(weights) for weight in weights]
    least = Fraction(1, 2 * len(sizes) - 2)
    given, turns = [0] * len(sizes), list[int]()
    while not (any if first else all)(count >= size for count, size in zip(given, sizes, strict=True)):
        place = len(turns) + 1
        behind = [place * part - count for part, count in zip(parts, given, strict=True)]
        may = [source for source in range(len(sizes)) if behind[source] >= least]
        turn = min(may, key=lambda source: (1 - least - behind[source]) / parts[source])
        given[turn] += 1
        turns.append(turn)
    return turns


def run(
    sizes: Sequence[int], weights: Sequence[Fraction], epochs: int, *, first: bool
) -> list[list[tuple[int, int, int]]]:
    """Return the examples of each epoch: the source, how often it has begun again, and the row in it."""
    handed_out = [0] * len(sizes)
    whole = []
    for _ in range(epochs):
        examples = []
        for source in one_epoch(sizes, weights, first=first):
            again, row = divmod(handed_out[source], sizes[source])
            examples.append((source, again, row))
            handed_out[source] += 1
        whole.append(examples)
    return whole


def balanced(
    values: Sequence[Sequence[str]], turns: Sequence[int], epochs: int
) -> list[list[tuple[int, int, int]]]:
    """Return the examples of each epoch where the values of each source's rows take turns: the source, how often that value has begun
    again, and the row in the source.

    Args:
        values: of the rows of each source.
        turns: of the sources in each epoch.
    """
    rows: dict[tuple[int, str], list[int]] = {}
    for source, own in enumerate(values):
        for row, value in enumerate(own):
            rows.setdefault((source, value), []).append(row)
    handed_out = dict.fromkeys(rows, 0)
    whole = []
    for _ in range(epochs):
        examples, taken = [], [0] * len(values)
        for source in turns:
            names = sorted({*values[source]})
            value = names[taken[source] % len(names)]
            taken[source] += 1
            own = rows[source, value]
            again, place = divmod(handed_out[source, value], len(own))
            handed_out[source, value] += 1
            examples.append((source, again, own[place]))
        whole.append(examples)
    return whole
