"""Tokenizers, and whether a model has room for what they make."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from snugfit.core.random import derive_seed, preserved_randomness, seed_device
from snugfit.errors import ModelError, SettingError
from snugfit.kit.sharded_loading import is_stand_in
from snugfit.models.folders import OWN_LIMIT, check_tokenizer_files
from snugfit.models.hub import call, quiet_transformers, resolve

_ADDED = "snugfit_added_tokens"
"""Attribute of a tokenizer: how many tokens it was given."""

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_tokenizer(
    source: str | Path, *, folder: Path | None = None, add: Sequence[str] = ()
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model; one without a padding token pads with its end-of-sequence token.

    Args:
        add: tokens that it gets where it does not know them, and for which `fit_tokenizer` makes room in the model.
    Raises:
        ModelError: there is none, or it has neither token.
        SettingError: a token to add is empty.
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
    _add_tokens(tokenizer, add)
    own_limit = getattr(tokenizer, "init_kwargs", {}).get(OWN_LIMIT)
    if own_limit is not None:  # of a classifier in best/: who trains on may take longer texts
        tokenizer.model_max_length = own_limit
    # padding counts as trailing everywhere: positions, lengths and trimming
    tokenizer.padding_side = "right"
    return tokenizer


def _add_tokens(tokenizer: PreTrainedTokenizerBase, add: Sequence[str]) -> None:
    from transformers import AddedToken

    if not all(map(str.strip, add)):
        raise SettingError("data.add_tokens", "has a token without a character", "Remove it.")
    known = tokenizer.get_vocab()
    # special: no text of a row may hold one, and generated texts are shown without them
    new = [
        AddedToken(token, special=True, normalized=False)
        for token in dict.fromkeys(add)
        if token not in known
    ]
    if new:
        tokenizer.add_tokens(new)
        setattr(tokenizer, _ADDED, len(new))


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path, max_length: int | None = None) -> None:
    """Write a tokenizer that cuts texts, where it is asked to cut them, to the `max_length` that the model was trained with."""
    if max_length is None:
        tokenizer.save_pretrained(folder)
        return
    served: Any = copy.deepcopy(tokenizer)
    served.init_kwargs = {**served.init_kwargs, OWN_LIMIT: tokenizer.model_max_length}
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
        ModelError: it has too few embeddings, but for the tokens that its tokenizer was given.
        SettingError: it has none for those, and cannot get them.
    """
    embeddings: Any = model.get_input_embeddings()
    rows, added = embeddings.weight.shape[0], getattr(tokenizer, _ADDED, 0)
    if len(tokenizer) - added > rows:
        raise ModelError(
            "model",
            f"the tokenizer knows {len(tokenizer) - added:,} tokens, {source} has embeddings for {rows:,}",
            "Take the tokenizer of this model.",
        )
    if len(tokenizer) > rows:
        grow_embeddings(model, len(tokenizer))
    # a classifier on a decoder finds the last token by the padding's id
    model.config.pad_token_id = tokenizer.pad_token_id


def grow_embeddings(model: PreTrainedModel, tokens: int) -> None:
    """Give a model embeddings for so many tokens: new rows are drawn around the mean of those that are there, always the same.

    Raises:
        SettingError: each device has read a part of them.
    """
    embeddings: Any = model.get_input_embeddings()
    weight = embeddings.weight
    if is_stand_in(weight):
        raise SettingError(
            "data.add_tokens",
            "gives the model new rows of its embeddings, and each device has read a part of them",
            "Write a model that has them first: one update on one device, and take its best/ as the model.",
        )
    host = torch.device("cpu")
    with preserved_randomness(host), quiet_transformers():
        seed_device(derive_seed("new tokens"), host)
        model.resize_token_embeddings(tokens, mean_resizing=not weight.is_meta)
