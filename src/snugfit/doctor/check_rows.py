"""Pitfalls of rows as they stand in their files: texts and labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from snugfit.data.bad_rows import Fault
from snugfit.doctor.check_cells import classes, garbled, placeholders
from snugfit.doctor.findings import LARGE_LEAK, Certainty, Finding
from snugfit.units import counted

FEW = 0.01
"""Part of the rows up to which a fault is worth a look; of validation rows, from which a score is no longer one on unseen data."""
ONE_CLASS = 0.9
MOST = 0.5
"""Part of the rows from which a fault is one of the file."""
REPEATED = 0.1
"""Part of the rows from which a random split puts enough of them on both sides to change a score."""
_LINES = 5
_FIXES: Mapping[str, str] = {
    "not UTF-8": "iconv -f WINDOWS-1252 -t UTF-8 rows.csv > utf8.csv   # by the encoding that it has"
}
_FAULTS: Mapping[str, str] = {"unknown label": "unknown_label"}


@dataclass(frozen=True)
class Rows:
    """Texts of one source with their labels, if they have any, and the lines on which they begin."""

    texts: Sequence[str]
    labels: Sequence[str] = ()
    source: str = ""
    lines: Sequence[int | str] = ()


def examine_rows(train: Rows, validation: Rows | None, faults: Sequence[Fault] = ()) -> list[Finding]:
    """Return what texts and labels say as they stand in their files."""
    held_out = [] if validation is None else list(overlap(train.texts, validation.texts, "texts"))
    unknown = [] if validation is None else list(unseen_labels(train, validation))
    return [
        *faulty_rows(faults, len(train.texts) + (0 if validation is None else len(validation.texts))),
        *garbled(train.texts, train.lines, train.source),
        *placeholders(train.texts, train.lines, train.source),
        *held_out,
        *unknown,
        *classes(train.labels, train.source),
        *duplicates(train.texts, train.labels, train.lines),
        *imbalance(Counter(train.labels), train.source),
    ]


def faulty_rows(faults: Sequence[Fault], usable: int = 0) -> Iterator[Finding]:
    """Detect rows that cannot be used, by reason; half of all rows or more are no exception any longer."""
    total = usable + len(faults)
    for reason, count in Counter(fault.reason for fault in faults).most_common():
        own = [fault for fault in faults if fault.reason == reason]
        unknown = reason == "unknown label"
        yield Finding(
            _FAULTS.get(reason, "empty_rows"),
            Certainty.CERTAIN if unknown or count >= MOST * total else Certainty.LIKELY,
            f"{count:,} of {total:,} rows cannot be used: {reason}",
            where=f"{own[0].source}:{own[0].line}",
            evidence=tuple(f"line {fault.line}: {fault.detail}" for fault in own[:3]),
            fix=_FIXES.get(
                reason, "data: {bad_rows: skip}   # leaves them out and counts them; or mend the rows"
            ),
        )


def overlap(train: Iterable[Any], validation: Sequence[Any], what: str) -> Iterator[Finding]:
    """Detect rows to validate on that were trained on, as they are or but for case and spaces."""
    own = list(validation)
    known = list(train)
    exact, alike = set(known), {normalised(each) for each in known}
    same = [each for each in own if each in exact]
    nearly = [each for each in own if each not in exact and normalised(each) in alike]
    share = (len(same) + len(nearly)) / max(1, len(own))
    if not same and not nearly:
        return
    shown = tuple(f"'{_short(each)}'" for each in (same + nearly)[:3] if isinstance(each, str))
    yield Finding(
        "leakage",
        Certainty.CERTAIN
        if share >= LARGE_LEAK
        else Certainty.LIKELY
        if share >= FEW
        else Certainty.WORTH_A_LOOK,
        f"{len(same) + len(nearly):,} of {len(own):,} validation {what} ({share:.1%}) are among those to train on",
        where="data.validation",
        evidence=(f"{len(same):,} exactly, {len(nearly):,} but for case and spaces", *shown),
        fix="remove duplicates before splitting, and split by what repeats (author, page, patient)",
    )


def duplicates(
    texts: Sequence[str], labels: Sequence[str], lines: Sequence[int | str] = ()
) -> Iterator[Finding]:
    """Detect rows that say the same, and those among them with different labels; by their lines where these are known."""

    def on(places: Sequence[int]) -> str:
        if not lines:
            return ""
        shown = ", ".join(str(lines[place]) for place in places[:_LINES])
        return f" (lines {shown}{' …' if len(places) > _LINES else ''})"

    by_text: dict[str, list[int]] = {}
    for place, text in enumerate(texts):
        by_text.setdefault(normalised(text), []).append(place)
    repeated = {text: places for text, places in by_text.items() if len(places) > 1}
    extra = sum(len(places) - 1 for places in repeated.values())
    against = [
        text for text, places in repeated.items() if labels and len({labels[place] for place in places}) > 1
    ]
    if against:
        rows = sum(len(repeated[text]) for text in against)
        yield Finding(
            "duplicates",
            Certainty.LIKELY if rows >= FEW * len(texts) else Certainty.WORTH_A_LOOK,
            f"{counted(len(against), 'text')} ({counted(rows, 'row')}) with different labels",
            evidence=tuple(
                f"'{_short(text)}': {', '.join(sorted({labels[place] for place in repeated[text]}))}{on(repeated[text])}"
                for text in against[:3]
            ),
            fix="decide on one label for each text, or leave those rows out",
        )
    if extra:
        yield Finding(
            "duplicates",
            Certainty.LIKELY if extra >= REPEATED * len(texts) else Certainty.WORTH_A_LOOK,
            f"{extra:,} of {len(texts):,} rows repeat another one",
            evidence=tuple(
                f"{len(places)} times '{_short(text)}'{on(places)}"
                for text, places in list(repeated.items())[:3]
            ),
            fix="keep one of each before the rows are split: copies on both sides raise the score",
        )


def imbalance(counts: Mapping[str, int], where: str = "") -> Iterator[Finding]:
    """Detect one class that nearly all rows have."""
    total = sum(counts.values())
    if len(counts) < 2 or not total:
        return
    name, most = max(counts.items(), key=lambda each: each[1])
    share = most / total
    if share >= ONE_CLASS:
        yield Finding(
            "imbalance",
            Certainty.LIKELY,
            f"{share:.1%} of {total:,} rows are '{name}': a model that always says so is right as often",
            where=where,
            evidence=tuple(
                f"'{label}' {count:,}"
                for label, count in sorted(counts.items(), key=lambda each: -each[1])[:5]
            ),
            fix="evaluate: {metrics: [macro_f1], best: macro_f1}   # and more rows of the others, or a focal loss",
        )


def unseen_labels(train: Rows, validation: Rows) -> Iterator[Finding]:
    """Detect labels to validate on that no row to train on has."""
    unknown = Counter(label for label in validation.labels if label not in set(train.labels))
    if unknown and train.labels:
        yield Finding(
            "unknown_label",
            Certainty.CERTAIN,
            f"{counted(sum(unknown.values()), 'validation row')} with labels that are not trained",
            where=validation.source,
            evidence=tuple(f"'{label}' {count:,} times" for label, count in unknown.most_common(5)),
            fix="mend the labels, or split so that each class is in both parts",
        )


def normalised(value: Any) -> Any:
    r"""Return a text but for case and spaces; anything else as it is.

    >>> normalised("  Two  Words\n")
    'two words'
    """
    return " ".join(value.casefold().split()) if isinstance(value, str) else value


def _short(text: str, length: int = 60) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
