"""The acts of a script with texts, their tokens and labels."""

from __future__ import annotations

from dataclasses import dataclass

from snugfit.doctor.observe.events.script_events import Event


@dataclass(frozen=True)
class PaddingMask(Event):
    """An attention of torch's got a mask of padding, or none, for tokens of which the last of some rows are padding.

    Args:
        padding, text: tokens of padding and of text; `hidden_padding` and `hidden_text` those that the mask hides.
        masked: whether there was a mask.
        both_ways: whether attention has no mask of another kind, as that of a decoder is.
    """

    padding: int
    text: int
    hidden_padding: int
    hidden_text: int
    masked: bool
    both_ways: bool = True


@dataclass(frozen=True)
class HeadTokens(Event):
    """The token with which every row of a batch begins, how often, and what a tokenizer of the script says of it."""

    token: int
    times: int
    special: str
    correct: str


@dataclass(frozen=True)
class Labels(Event):
    """A causal language model of transformers got labels for `rows` of tokens, of which `bare` have none that counts.

    Args:
        shifted: the share of the labels that equals the next input; `same` that which equals the input.
        cut: those of the bare rows that have no padding, beside others that have.
    """

    shifted: float
    same: float
    rows: int = 0
    bare: int = 0
    cut: int = 0


@dataclass(frozen=True)
class MaskedTokens(Event):
    """A model of transformers got tokens, and labels for each of them or none; or a loss got labels for tokens that some rows end in.

    Args:
        scored: labels that count; `scored_padding` those of them where the attention mask is 0.
        ends: tokens that end a text or a turn, behind the first token and where the mask is 1; `scored_ends` those whose label counts.
        unmasked: padding tokens at the end of rows, without an attention mask, in a model that reads in both directions.
        tokens: all of the batch.
        by_mask: whether it is a mask that shows the padding, not the tokens themselves.
    """

    scored: int
    scored_padding: int
    ends: int
    scored_ends: int
    unmasked: int
    tokens: int
    by_mask: bool = True


@dataclass(frozen=True)
class Tokenized(Event):
    """Texts went through a tokenizer, which cut some."""

    texts: int
    cut: int
    limit: int
