"""The text of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def decoder_of(tokenizer: PreTrainedTokenizerBase) -> Callable[[Sequence[int]], str]:
    """Return the function that makes a text of tokens."""

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(list(tokens), skip_special_tokens=True))

    return decode
