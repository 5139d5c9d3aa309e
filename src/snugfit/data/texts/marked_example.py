"""A training example as the model reads it: its tokens decoded, with what is scored marked."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from snugfit.data.texts.tokens import IGNORED_LABEL, sequences_in

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_TOKENS = 600
"""Of an example, that are shown; a longer one is cut in its middle."""


def marked_parts(
    example: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, names: Sequence[str] = ()
) -> list[list[Any]]:
    """Return the parts of an example in order, each a text and whether it is scored; a label of the whole text comes last, as scored.

    Args:
        names: those of the classes that a whole text may have.
    """
    sequences = sequences_in(example)
    if len(sequences) > 1:  # each on lines of its own
        parts = [[*marked_parts(each, tokenizer), ["\n", False]] for each in sequences]
        return [part for each in parts for part in each][:-1]
    ids, labels = list(example["input_ids"]), example.get("labels")
    # labels of tokens are integers; of the text there is one, or a number for each that it may have
    if not isinstance(labels, (list, tuple)) or isinstance(labels[0], float):
        text = tokenizer.decode(_shortened(ids), skip_special_tokens=False)
        return [[str(text), False], *([] if labels is None else [[_label(labels, names), True]])]
    pairs = _shortened(list(zip(ids, labels, strict=True)))
    runs = itertools.groupby(pairs, key=lambda pair: pair[1] != IGNORED_LABEL)
    return [
        [str(tokenizer.decode([token for token, _ in run], skip_special_tokens=False)), scored]
        for scored, run in runs
    ]


def _label(label: Any, names: Sequence[str]) -> str:
    """Return the name of a class, or those of the labels of a text that may have any number of them; a number as it is."""
    if not names:
        return str(label)
    if isinstance(label, (list, tuple)):
        return (
            ", ".join(name for name, there in zip(names, label, strict=True) if there) or "none of the labels"
        )
    return str(names[label])


def _shortened(tokens: Sequence[Any]) -> list[Any]:
    if len(tokens) <= MOST_TOKENS:
        return list(tokens)
    half = MOST_TOKENS // 2
    return [*tokens[:half], *tokens[-half:]]
