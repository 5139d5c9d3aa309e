"""The tokens that the decoder of a model reads while it is trained: the labels one place later, behind the token that every text begins with."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from snugfit.core.batch import IGNORE_INDEX
from snugfit.errors import ModelError

DecoderInputs = Callable[[Tensor], Tensor]
"""From labels (rows, tokens) to the tokens that the decoder reads, of the same shape."""

_WRITERS = ("ForConditionalGeneration", "ForTextToText", "ForSpeechToText")


def decoder_inputs_of(model: nn.Module) -> DecoderInputs | None:
    """Return what makes a decoder's inputs of labels; None for a model that writes no text after reading something else.

    It is the model's own rule where it has one. Some of transformers, such as M2M100, NLLB and Whisper, have it in their forward alone, which
    asks for the labels there and computes their loss too: for these it is the same shift by their configuration.
    """
    own: DecoderInputs | None = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    config: Any = getattr(model, "config", None)
    if own is not None or not getattr(config, "is_encoder_decoder", False):
        return own
    wrapper: Any = model  # of peft, or the model itself
    base = wrapper.get_base_model() if hasattr(model, "get_base_model") else model
    takes_tokens = "decoder_input_ids" in inspect.signature(base.forward).parameters
    return partial(_shifted, config) if takes_tokens and type(base).__name__.endswith(_WRITERS) else None


def _shifted(config: Any, labels: Tensor) -> Tensor:
    start, padding = (getattr(config, name, None) for name in ("decoder_start_token_id", "pad_token_id"))
    if start is None or padding is None:
        missing = "decoder_start_token_id" if start is None else "pad_token_id"
        raise ModelError(
            "model",
            f"its configuration has no {missing}, which its decoder reads",
            f"Set model.config.{missing}, or give decoder_input_ids in the batch.",
        )
    shifted = labels.roll(1, dims=1)
    shifted[:, 0] = start
    return shifted.masked_fill(shifted == IGNORE_INDEX, padding)
