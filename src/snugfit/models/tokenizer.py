"""Tokenizers, and whether a model has room for what they make."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from snugfit.errors import ModelError, SettingError
from snugfit.models.folders import check_tokenizer_files
from snugfit.models.hub import call, quiet_transformers, resolve

_OWN_LIMIT = "pretrained_max_length"
"""In tokenizer_config.json of a classifier: the limit of the pretrained tokenizer, where `model_max_length` is that of the training."""

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_tokenizer(source: str | Path, *, folder: Path | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model; one without a padding token pads with its end-of-sequence token.

    Raises:
        ModelError: there is none, or it has neither token.
    """
    _, name, local = resolve(source, False, folder)
    if local is not None:
        check_tokenizer_files(local)
    with quiet_transformers():
        from transformers import AutoTokenizer

        tokenizer: PreTrainedTokenizerBase = call(
            name, local, lambda **more: AutoTokenizer.from_pretrained(name, trust_remote_code=False, **more)
        )
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            raise ModelError(
                "model",
                f"the tokenizer of {source} has neither a padding nor an end-of-sequence token",
                "Set tokenizer.pad_token, and save it again.",
            )
        tokenizer.pad_token = tokenizer.eos_token
    own_limit = getattr(tokenizer, "init_kwargs", {}).get(_OWN_LIMIT)
    if own_limit is not None:  # of a classifier in best/: who trains on may take longer texts
        tokenizer.model_max_length = own_limit
    # padding counts as trailing everywhere: positions, lengths and trimming
    tokenizer.padding_side = "right"
    return tokenizer


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path, max_length: int | None = None) -> None:
    """Write a tokenizer that cuts texts, where it is asked to cut them, to the `max_length` that the model was trained with."""
    if max_length is None:
        tokenizer.save_pretrained(folder)
        return
    served: Any = copy.deepcopy(tokenizer)
    served.init_kwargs = {**served.init_kwargs, _OWN_LIMIT: tokenizer.model_max_length}
    served.model_max_length = max_length
    served.save_pretrained(folder)


def check_length(model: nn.Module, max_length: int, setting: str = "data.max_length") -> None:
    """See that the model's learned position embeddings reach `max_length` tokens.

    Args:
        setting: the full name of the setting, for the error.
    Raises:
        SettingError: they do not; running would end in an index error or a device assert.
    """
    limit = position_limit(model)
    if limit is not None and max_length > limit:
        raise SettingError(
            setting,
            f"{max_length} is more than the {limit} positions that this model has",
            "Lower it.",
        )


def position_limit(model: nn.Module) -> int | None:
    """Return how many positions a table of learned embeddings has; None for a model without one."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.endswith(
            ("position_embeddings", "wpe", "embed_positions")
        ):
            # RoBERTa and its kin count positions from after the padding index, OPT from an offset of its own
            used = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - int(getattr(module, "offset", used))
    return None


def fit_tokenizer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str | Path) -> None:
    """See that the model has an embedding for every token, and tell it which token pads.

    Raises:
        ModelError: it has too few embeddings.
    """
    embeddings: Any = model.get_input_embeddings()
    rows = embeddings.weight.shape[0]
    if len(tokenizer) > rows:
        raise ModelError(
            "model",
            f"the tokenizer knows {len(tokenizer):,} tokens, {source} has embeddings for {rows:,}",
            "Take the tokenizer of this model.",
        )
    # a classifier on a decoder finds the last token by the padding's id
    model.config.pad_token_id = tokenizer.pad_token_id
