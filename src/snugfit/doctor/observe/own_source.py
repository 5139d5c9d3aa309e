"""Lines of a script's own source that tell where something was done that no function of torch sees."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable, Iterable, Sequence

from snugfit.doctor.observe.watchers.watch_log import is_own, shown

_SPLITS = re.compile(r"\b(random_split|train_test_split)\(")


def line_that_sets(attributes: Iterable[str]) -> str:
    """Return file:line where the script sets the first of these attributes to False, not in a loop over parameters if it is that of a module; "" without."""
    attribute = next(iter(attributes), "")
    name = re.escape(attribute)
    sets = re.compile(rf"\.{name}\s*=\s*False\b|setattr\(.*[\"']{name}[\"']")

    def matches(lines: Sequence[str], number: int) -> bool:
        of_parameters = attribute == "requires_grad" and "parameters(" in "".join(
            lines[max(0, number - 2) : number + 1]
        )
        return bool(sets.search(lines[number])) and not of_parameters

    return _first_line(matches) if attribute else ""


def line_that_splits() -> str:
    """Return file:line where the script splits its rows at random; "" where its source does not show it."""
    return _first_line(
        lambda lines, number: bool(_SPLITS.search(lines[number])) and "import" not in lines[number]
    )


def _first_line(matches: Callable[[Sequence[str], int], bool]) -> str:
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py") or not is_own(file):
            continue
        lines = linecache.getlines(file)
        for number in range(len(lines)):
            if matches(lines, number):
                return f"{shown(file)}:{number + 1}"
    return ""
