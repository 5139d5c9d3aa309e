"""Small pieces of HTML and the way values are written in them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from snugfit.report.series import as_number, format_number
from snugfit.report.svg import escape
from snugfit.results.shown import with_breaks
from snugfit.units import format_bytes, format_seconds

UNITS = ("_bytes", "_seconds")


def facts(rows: Iterable[tuple[str, Any]]) -> str:
    """Return names and values as a definition list."""
    body = "".join(
        f"<dt>{escape(_without_unit(name))}</dt><dd>{breakable(written(value, name))}</dd>"
        for name, value in rows
    )
    return f"<dl class=facts>{body}</dl>" if body else ""


def figures(rows: Iterable[tuple[str, str, str]]) -> str:
    """Return the figures that are looked at first: each a name, a value, and what goes with it."""
    body = "".join(
        f"<div><dt>{breakable(name)}</dt><dd>{escape(value)}<small>{escape(more)}</small></dd></div>"
        for name, value, more in rows
    )
    return f"<dl class=figures>{body}</dl>"


def breakable(name: str) -> str:
    """Return a name or a path that a narrow page breaks behind a dot, an underscore or a slash, not within a word."""
    return with_breaks(escape(name))


def model_name(model: str) -> str:
    """Return a model's name, or the end of its path where that is long.

    >>> model_name("google-bert/bert-base-uncased"), model_name("/home/me/minilm/model")
    ('google-bert/bert-base-uncased', 'minilm/model')
    """
    path = Path(model)
    return "/".join(path.parts[-2:]) if path.is_absolute() or len(path.parts) > 2 else model


def flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested settings as dotted names.

    >>> flat({"a": 1, "b": {"c": [1, 2]}})
    [('a', 1), ('b.c', [1, 2])]
    """
    rows: list[tuple[str, Any]] = []
    for key, value in values.items():
        nested = isinstance(value, dict) and value
        rows += flat(value, f"{prefix}{key}.") if nested else [(f"{prefix}{key}", value)]
    return rows


def written(value: Any, name: str = "") -> str:
    """Return a value as people read it; a name that ends in a unit says what a number counts.

    >>> written(3 * 2**30, "memory_bytes"), written(True), written(["a", 1])
    ('3.00 GiB', 'yes', 'a, 1')
    """
    if value is None or value == {} or value == []:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return _number(value, name)
    if isinstance(value, list):
        return ", ".join(written(item) for item in value)
    return json.dumps(value) if isinstance(value, dict) else str(value)


def aligned(values: Sequence[object], decimals: int) -> list[str]:
    """Return a column of numbers, with equal decimals where that keeps their digits; what is missing stays empty.

    >>> aligned([0.5, 1.25, None], decimals=2)
    ['0.50', '1.25', '']
    """
    numbers = [number for number in map(as_number, values) if number is not None]
    largest = max(map(abs, numbers), default=0.0)
    if numbers and 10.0 ** (1 - decimals) <= largest < 1e4:
        short = {number: f"{number:.{decimals}f}".replace("-", "−") for number in numbers}
    else:
        short = {number: format_number(number) for number in numbers}
    return [
        "" if value is None else written(value) if (number := as_number(value)) is None else short[number]
        for value in values
    ]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: int, *, named: bool = False) -> str:
    """Return a table that scrolls by itself on a narrow screen; its first `numbers` columns are set as numbers.

    Args:
        named: whether a column before those has the name of each row, which stays in view.
    """
    kinds = [*(["name"] if named else []), *["number"] * numbers]

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{f' class={kinds[place]}' if place < len(kinds) else ''}>{escape(cell)}</{tag}>"
            for place, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        "<div class=scroll tabindex=0><table>"
        f"<thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def details(summary: str, body: str) -> str:
    """Return a body that a click on its summary opens."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def clock(seconds: float) -> str:
    """Return a moment in the reader's time zone, with its name."""
    moment = datetime.datetime.fromtimestamp(seconds).astimezone()
    exact = moment.isoformat(timespec="seconds")
    return f"<time datetime='{exact}'>{moment:%Y-%m-%d %H:%M}&nbsp;{escape(moment.tzname())}</time>"


def shortened(count: float) -> str:
    """Return a large count in millions or billions.

    >>> shortened(22_714_756), shortened(1186)
    ('22.7 M', '1,186')
    """
    for size, suffix in ((1e9, "B"), (1e6, "M")):
        if count >= size:
            return f"{count / size:.3g} {suffix}"
    return f"{count:,.0f}"


def _number(value: float, name: str) -> str:
    if as_number(value) is not None:
        if name.endswith("bytes"):
            return format_bytes(value)
        if name.endswith("seconds"):
            return format_seconds(value)
        if isinstance(value, int):
            return f"{value:,}"
    return format_number(value)


def _without_unit(name: str) -> str:
    return next((name.removesuffix(unit) for unit in UNITS if name.endswith(unit)), name)
