"""Names of classes: in order, enough of them, and what looks like a mistake in them."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence

from snugfit.errors import DataError
from snugfit.units import counted


def check_classes(names: Collection[str], source: str, column: str) -> None:
    """See that rows are of two classes or more.

    Raises:
        DataError: they are not.
    """
    if len(names) < 2:
        raise DataError(
            "data.label",
            f"{source} has {('no usable row' if not names else 'one class only')} in column "
            f"'{column}'{''.join(f' ({name})' for name in names)}",
            "Give rows of two classes or more, which a classifier needs.",
        )


def sort_labels(names: set[str]) -> tuple[str, ...]:
    """Label names in order: by value when all are whole numbers, otherwise by code point.

    >>> sort_labels({"10", "9", "-1"}), sort_labels({"b", "a", "10"})
    (('-1', '9', '10'), ('10', 'a', 'b'))
    """
    try:
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    except ValueError:
        return tuple(sorted(names))


def label_warnings(names: Sequence[str], rows: int, column: str) -> list[str]:
    """Return what looks like a mistake: about as many classes as rows, or names that differ in spaces, capitals or the form of Unicode alone."""
    many = []
    if rows >= 20 and len(names) > rows / 2:
        many = [
            f"{counted(len(names), 'class')} for {counted(rows, 'row')}: does column '{column}' hold the labels?"
        ]
    by_form: dict[str, list[str]] = {}
    for name in names:
        plain = unicodedata.normalize("NFKC", " ".join(name.split())).casefold()
        by_form.setdefault(plain, []).append(name)
    return many + [
        f"the labels {', '.join(map(ascii if _look_alike(same) else repr, same))} differ only in spaces, capitals or the form of Unicode and are taken as "
        f"{len(same)} classes."
        for same in by_form.values()
        if len(same) > 1
    ]


def _look_alike(names: Sequence[str]) -> bool:
    """Return whether names are shown alike, though their characters differ, as an accent may be one by itself.

    >>> _look_alike(["caf\u00e9", "cafe\u0301"]), _look_alike(["a", "A"])
    (True, False)
    """
    return len({unicodedata.normalize("NFC", name) for name in names}) < len(names)
