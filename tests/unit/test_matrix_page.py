"""The page of what composes says what composition does."""

from __future__ import annotations

import itertools
import re

from scripts.matrix import render
from snugfit.core.selection import check
from snugfit.errors import PlanConflict
from snugfit.techniques import discover


def conflicts() -> set[tuple[str, str]]:
    found = set()
    for (one, first), (other, second) in itertools.combinations(discover().items(), 2):
        try:
            check([first.example(), second.example()])
        except PlanConflict:
            found.add((one, other))
    return found


def test_the_grid_has_a_cross_for_each_pair_that_is_refused_and_a_dot_for_the_others() -> None:
    grid = render().partition("```text")[2].partition("```")[0].strip("\n").splitlines()
    rows = [line.split() for line in grid[1:]]
    names = [row[1] for row in rows]
    assert names == list(discover())
    crossed = set()
    for number, row in enumerate(rows):
        cells = row[2:]
        assert len(cells) == number and set(cells) <= {"·", "×"}
        crossed |= {(names[place], names[number]) for place, cell in enumerate(cells) if cell == "×"}
    assert crossed == conflicts()


def test_each_refused_pair_has_its_reason_and_the_counts_are_right() -> None:
    page = render()
    pairs = len(discover()) * (len(discover()) - 1) // 2
    assert f"make {pairs} pairs. {pairs - len(conflicts())} of them compose" in page
    table = page.partition("## What is refused")[2].partition("## The order")[0]
    reasons = []
    for line in table.splitlines():
        cells = [re.findall(r"\[(\w+)\]", cell) for cell in line.split(" | ")]
        if cells[0]:
            reasons += (
                itertools.combinations(cells[0], 2)
                if len(cells[0]) > 1
                else [tuple(sorted((cells[0][0], other))) for other in cells[1]]
            )
    assert {tuple(sorted(pair)) for pair in reasons} == {tuple(sorted(pair)) for pair in conflicts()}


def test_the_chains_stand_in_the_order_in_which_they_are_composed() -> None:
    line = next(line for line in render().splitlines() if line.startswith("| `adjust` |"))
    assert [part.split(":")[0].split()[-1] for part in line.split(" → ")] == [
        "element",
        "unit",
        "norm",
        "noise",
    ]
