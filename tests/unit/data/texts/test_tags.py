"""Tags and the spans that they mean, beside a slow reading of the rules of CoNLL."""

from __future__ import annotations

import random

import pytest

from snugfit.data.texts.tags import Scheme, Span, completed, scheme_of, spans_of, tags_of


def chunks(tags: list[str]) -> set[tuple[int, int, str]]:
    """The rules of CoNLL's evaluation as seqeval writes them: a chunk ends before a tag, and begins with it."""

    def ends(before: str, tag: str, kind: str, kind_before: str) -> bool:
        pairs = ("BB", "BS", "BO", "IB", "IS", "IO")
        return before in "ES" or before + tag in pairs or (before not in "O" and kind_before != kind)

    def begins(before: str, tag: str, kind: str, kind_before: str) -> bool:
        pairs = ("EE", "EI", "SE", "SI", "OE", "OI")
        return tag in "BS" or before + tag in pairs or (tag not in "O" and kind_before != kind)

    found = set()
    before, kind_before, start = "O", "", 0
    for place, text in enumerate([*tags, "O"]):
        tag, kind = {"L": "E", "U": "S"}.get(text[0], text[0]), text[2:]
        if before != "O" and ends(before, tag, kind, kind_before):
            found.add((start, place, kind_before))
        if tag != "O" and begins(before, tag, kind, kind_before):
            start = place
        before, kind_before = tag, kind
    return found


@pytest.mark.parametrize("scheme", ["bio", "bilou", "bioes"])
def test_spans_are_those_of_conll_however_the_tags_are_mixed(scheme: Scheme) -> None:
    names = completed(["B-a", "B-b"], scheme)
    drawn = random.Random(0)
    for _ in range(500):
        tags = drawn.choices(names, k=drawn.randint(0, 7))
        assert set(spans_of(tags, scheme)) == chunks(tags), tags


@pytest.mark.parametrize("scheme", ["bio", "bilou", "bioes"])
def test_tags_of_spans_mean_those_spans_again(scheme: Scheme) -> None:
    spans = [Span(0, 1, "x"), Span(1, 3, "x"), Span(4, 7, "y")]
    tags = tags_of(spans, 8, scheme)
    assert spans_of(tags, scheme) == spans
    assert scheme_of(tags) == scheme and set(tags) <= set(completed(tags, scheme))


def test_tags_without_prefixes_are_a_span_a_word() -> None:
    assert scheme_of(["B-x", "NOUN"]) == "plain"
    assert spans_of(["NOUN", "O", "NOUN", "NOUN"], "plain") == [
        Span(0, 1, "NOUN"),
        Span(2, 3, "NOUN"),
        Span(3, 4, "NOUN"),
    ]


def test_a_model_can_go_on_with_each_label_though_training_rows_never_do() -> None:
    assert completed(["O", "B-x", "B-y", "I-y"], "bio") == ("O", "B-x", "I-x", "B-y", "I-y")
