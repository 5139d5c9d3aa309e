"""An example is shown with what is scored, in the words of who labelled it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from snugfit.data.texts.marked_example import marked_parts
from snugfit.data.texts.tokens import IGNORED_LABEL


class Words:
    """A tokenizer whose tokens are words."""

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return " ".join(f"w{token}" for token in tokens)


WORDS = cast("Any", Words())


@pytest.mark.parametrize(
    ("label", "names", "shown"),
    [
        (2, ("cold", "mild", "warm"), "warm"),
        ([1.0, 0.0, 1.0], ("cold", "wet", "windy"), "cold, windy"),
        ([0.0, 0.0], ("cold", "wet"), "none of the labels"),
        (0.5, (), "0.5"),
    ],
)
def test_the_label_of_a_text_is_shown_by_its_name(label: Any, names: Sequence[str], shown: str) -> None:
    parts = marked_parts({"input_ids": [1, 2], "labels": label}, WORDS, names)
    assert parts == [["w1 w2", False], [shown, True]]


def test_tokens_that_are_scored_are_marked() -> None:
    labels = [IGNORED_LABEL, IGNORED_LABEL, 3, 4]
    parts = marked_parts({"input_ids": [1, 2, 3, 4], "labels": labels}, WORDS)
    assert parts == [["w1 w2", False], ["w3 w4", True]]
