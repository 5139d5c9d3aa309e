"""Pitfalls of the cells of a file: texts that were decoded wrongly or stand for nothing, labels that are one or too many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from snugfit.doctor.findings import Certainty, Finding
from snugfit.units import counted

FEW = 0.01
MANY_CLASSES = 0.5
"""Part of the rows beyond which their classes are no classes, but names or numbers of the rows."""
NOTHING = frozenset({"nan", "none", "null", "n/a", "#n/a", "na", "<na>", "nil", "undefined"})
_REPLACED = "\N{REPLACEMENT CHARACTER}"


def garbled(texts: Sequence[str], lines: Sequence[int | str] = (), source: str = "") -> Iterator[Finding]:
    """Detect UTF-8 that was read as another encoding, and characters that a reader has given up."""
    bad = [(place, meant) for place, text in enumerate(texts) if (meant := _meant(text)) or _REPLACED in text]
    if not bad:
        return
    yield Finding(
        "wrong_encoding",
        Certainty.LIKELY if len(bad) >= FEW * len(texts) else Certainty.WORTH_A_LOOK,
        f"{len(bad):,} of {len(texts):,} texts were decoded wrongly",
        where=source,
        evidence=tuple(
            f"{_line(lines, place)}'{_short(texts[place])}'" + (f" means '{_short(meant)}'" if meant else "")
            for place, meant in bad[:3]
        ),
        fix='text.encode("cp1252").decode("utf-8")   # or read the source again with its own encoding',
    )


def placeholders(
    texts: Sequence[str], lines: Sequence[int | str] = (), source: str = ""
) -> Iterator[Finding]:
    """Detect texts that are a word for nothing, as tables of numbers write it."""
    bad = [place for place, text in enumerate(texts) if text.strip().casefold() in NOTHING]
    if bad:
        yield Finding(
            "empty_rows",
            Certainty.LIKELY if len(bad) >= FEW * len(texts) else Certainty.WORTH_A_LOOK,
            f"{len(bad):,} of {len(texts):,} texts are a word for nothing",
            where=source,
            evidence=tuple(f"{_line(lines, place)}'{texts[place]}'" for place in bad[:3]),
            fix="leave these rows out: their text was missing when the file was written",
        )


def classes(labels: Sequence[str], source: str = "") -> Iterator[Finding]:
    """Detect labels that are one class, classes for nearly each row, classes of one row, and spellings of one class."""
    counts = Counter(labels)
    if not all(isinstance(label, str) for label in counts):  # sets of labels
        return
    if len(counts) == 1:
        yield Finding(
            "imbalance",
            Certainty.CERTAIN,
            f"all {counted(len(labels), 'row')} are '{labels[0]}': there is nothing to tell apart",
            where=source,
            fix="rows of another class; or another column: --label COLUMN",
        )
        return
    if len(counts) > MANY_CLASSES * len(labels):
        numbers = all(map(_is_number, counts))
        yield Finding(
            "rare_labels",
            Certainty.WORTH_A_LOOK if numbers else Certainty.CERTAIN,
            f"{counted(len(labels), 'row')} have {counted(len(counts), 'label')}: they {'are numbers' if numbers else 'name rows'}, no classes",
            where=source,
            evidence=(", ".join(f"'{_short(label, 20)}'" for label in list(counts)[:5]),),
            fix="another column: --label COLUMN"
            + (", unless numbers are what is learned" if numbers else ""),
        )
        return
    alone = [label for label, count in counts.items() if count == 1]
    if alone:
        yield Finding(
            "rare_labels",
            Certainty.LIKELY,
            f"{len(alone):,} of {len(counts):,} classes have one row: it is trained or validated, never both",
            where=source,
            evidence=(", ".join(f"'{_short(label, 20)}'" for label in alone[:5]),),
            fix="more rows of these classes, or leave them out",
        )
    yield from _spellings(counts, source)


def _spellings(counts: Counter[str], source: str) -> Iterator[Finding]:
    by_plain: dict[str, list[str]] = {}
    for label in counts:
        by_plain.setdefault(" ".join(label.casefold().split()), []).append(label)
    same = [labels for labels in by_plain.values() if len(labels) > 1]
    if same:
        yield Finding(
            "label_spelling",
            Certainty.LIKELY,
            f"{counted(len(same), 'class')} spelled in more than one way: each spelling is learned as a class of its own",
            where=source,
            evidence=tuple(
                ", ".join(f"'{label}' {counts[label]:,}" for label in labels) for labels in same[:3]
            ),
            fix="one spelling for each: label.strip().lower()",
        )


def _meant(text: str) -> str:
    """Return what a text would be if it was UTF-8 that was read as Windows-1252; "" where it was not.

    >>> _meant("cafÃ©"), _meant("café")
    ('café', '')
    """
    if text.isascii():
        return ""
    try:
        meant = text.encode("cp1252").decode("utf-8")
    except (UnicodeEncodeError, UnicodeDecodeError):
        return ""
    return meant if meant != text else ""


def _is_number(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True


def _line(lines: Sequence[int | str], place: int) -> str:
    return f"line {lines[place]}: " if place < len(lines) else ""


def _short(text: str, length: int = 60) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
