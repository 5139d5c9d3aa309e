"""The rows of some tokens, which train beside adapters: those of the embeddings, and of a head that has rows of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from snugfit.core.layers import output_layer
from snugfit.errors import SettingError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TOKENIZER = "snugfit_tokenizer"
"""Attribute of a model by which copies of it have the tokenizer too."""


class _Shared:
    """A tokenizer that copies of a model share."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer

    def __deepcopy__(self, memo: Any) -> _Shared:
        return self


def note_tokenizer(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> None:
    """Let techniques find tokens of the model by how its tokenizer writes them."""
    setattr(model, _TOKENIZER, _Shared(tokenizer))


def token_rows(model: nn.Module, tokens: Sequence[str | int], setting: str) -> dict[str, list[int]]:
    """Return the rows of these tokens by the names of the layers that have them: the embeddings, and the head where its weight is another.

    Args:
        tokens: as the tokenizer of the model writes them, or their numbers.
        setting: the full name of the setting, for errors.
    Raises:
        SettingError: the model embeds no tokens, or has none of that name or number.
    """
    embeddings: Any = getattr(model, "get_input_embeddings", lambda: None)()
    if not isinstance(embeddings, nn.Embedding):
        raise SettingError(
            setting, f"the model is a {type(model).__name__}, which embeds no tokens", "Remove it."
        )
    rows = sorted({_row(model, token, setting) for token in tokens})
    if rows[-1] >= embeddings.num_embeddings:
        raise SettingError(
            setting,
            f"token {rows[-1]} has no row: the model has embeddings for {embeddings.num_embeddings:,} tokens",
            "Give the model one: model.resize_token_embeddings(len(tokenizer)).",
        )
    head = output_layer(model)
    wanted: list[nn.Module] = [embeddings]
    if head is not None and head.weight is not embeddings.weight:
        wanted.append(head)
    return {name: rows for name, module in model.named_modules() if any(module is each for each in wanted)}


def _row(model: nn.Module, token: str | int, setting: str) -> int:
    if isinstance(token, int):
        if token < 0:
            raise SettingError(setting, f"got {token}, expected the number of a token", "Give 0 or more.")
        return token
    shared: _Shared | None = getattr(model, _TOKENIZER, None)
    if shared is None:
        raise SettingError(
            setting, f"got {token!r}, and no tokenizer came with the model", "Give the tokens' numbers."
        )
    vocabulary: Mapping[str, int] = shared.tokenizer.get_vocab()
    if token not in vocabulary:
        raise SettingError(
            setting,
            f"{token!r} is no token of the model's tokenizer, which knows {len(vocabulary):,}",
            "Add it (data.add_tokens of a language model), or correct it.",
        )
    return vocabulary[token]
