"""Tags of words, such as B-PER: their scheme, and the spans that they mean."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

Scheme = Literal["bio", "bilou", "bioes", "plain"]

OUTSIDE = "O"
"""The tag of a word that is in no span."""

_PREFIXES: dict[Scheme, str] = {"bio": "BI", "bilou": "BILU", "bioes": "BIES"}
_BEGIN, _END = "BUS", "LUES"
"""Prefixes by which a span always begins, and those by which it always ends."""
_TAG = re.compile(r"([BILUES])-(.+)", re.DOTALL)


class Span(NamedTuple):
    """Words, or characters, from `start` up to `end`, which is not among them, and their label."""

    start: int
    end: int
    label: str


def begins(label: str) -> str:
    """Return the tag of the first word of a span, which it has in every scheme.

    >>> begins("PER")
    'B-PER'
    """
    return f"B-{label}"


def scheme_of(tags: Collection[str]) -> Scheme:
    """Return the scheme of tags: the smallest whose prefixes they all have; plain where a tag has none.

    >>> scheme_of(["O", "B-PER", "I-PER"]), scheme_of(["U-PER", "O"]), scheme_of(["NOUN", "VERB"])
    ('bio', 'bilou', 'plain')
    """
    matches = [_TAG.fullmatch(tag) for tag in tags if tag != OUTSIDE]
    prefixes = {"" if match is None else match[1] for match in matches}
    fitting = (scheme for scheme, letters in _PREFIXES.items() if prefixes <= set(letters))
    return next(fitting, "plain") if prefixes else "plain"


def completed(tags: Collection[str], scheme: Scheme) -> tuple[str, ...]:
    """Return the tags that a model chooses from, those outside of spans first: each label has all prefixes of its scheme.

    >>> completed(["B-PER", "O"], "bio"), completed(["VERB", "NOUN"], "plain")
    (('O', 'B-PER', 'I-PER'), ('NOUN', 'VERB'))
    """
    if scheme == "plain":
        return tuple(sorted(set(tags), key=lambda tag: (tag != OUTSIDE, tag)))
    labels = sorted({tag[2:] for tag in tags if tag != OUTSIDE})
    return (OUTSIDE, *(f"{prefix}-{label}" for label in labels for prefix in _PREFIXES[scheme]))


def spans_of(tags: Sequence[str], scheme: Scheme) -> list[Span]:
    """Return the spans that the tags of words mean, in words.

    A span goes on over tags of its label that neither begin nor follow an end, so that one that lacks its first tag counts too, as
    in the evaluation of CoNLL and in seqeval. Plain tags are a span a word.

    >>> spans_of(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"], "bio")
    [Span(start=0, end=2, label='PER'), Span(start=3, end=4, label='LOC'), Span(start=4, end=5, label='LOC')]
    """
    if scheme == "plain":
        return [Span(place, place + 1, tag) for place, tag in enumerate(tags) if tag != OUTSIDE]
    spans: list[Span] = []
    open_, ended = False, True
    for place, tag in enumerate(tags):
        if tag == OUTSIDE:
            open_ = False
            continue
        prefix, label = tag[0], tag[2:]
        if open_ and not ended and prefix not in _BEGIN and spans[-1].label == label:
            spans[-1] = spans[-1]._replace(end=place + 1)
        else:
            spans.append(Span(place, place + 1, label))
        open_, ended = True, prefix in _END
    return spans


def tags_of(spans: Sequence[Span], count: int, scheme: Scheme) -> list[str]:
    """Return the tags of so many words by spans of words that do not overlap.

    >>> tags_of([Span(0, 3, "PER"), Span(4, 5, "LOC")], 5, "bilou")
    ['B-PER', 'I-PER', 'L-PER', 'O', 'U-LOC']
    """
    begin, inside, *ends = tuple(_PREFIXES[scheme])
    last, single = ends or (inside, begin)
    tags = [OUTSIDE] * count
    for start, end, label in spans:
        tags[start:end] = [f"{inside}-{label}"] * (end - start)
        tags[end - 1] = f"{last}-{label}"
        tags[start] = f"{single if end - start == 1 else begin}-{label}"
    return tags
