"""The forward of a model that reads one text and writes another, and the texts that it writes while it is scored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.batch import LABELS
from snugfit.core.scalar_reads import is_fake
from snugfit.errors import ModelError
from snugfit.kit.language_models.decoder_inputs import decoder_inputs_of
from snugfit.kit.language_models.generation import Generation, generate
from snugfit.kit.language_models.lm_head import logits_at_once

WRITTEN = "written"
"""The entry of outputs with the tokens that were written, shape (rows, tokens), filled up with -1."""

NO_TOKEN = -1


@dataclass(frozen=True)
class WrittenTexts:
    """The forward for an encoder with a decoder: logits of each token of the labels, by the model's own rule for what the decoder reads.

    Args:
        generation: how it writes texts of its own where it is scored, without a look at the labels.
        stops: tokens that end a text.
    """

    generation: Generation
    stops: tuple[int, ...] = ()

    def __call__(self, model: nn.Module, data: Mapping[str, Any]) -> dict[str, Tensor]:
        shifted = decoder_inputs_of(model)
        if shifted is None:
            raise ModelError(
                "model",
                f"{type(model).__name__} does not say what its decoder reads",
                "Take an encoder with a decoder, such as google-t5/t5-small or facebook/bart-base.",
            )
        outputs: Any = model(**_inputs(data), decoder_input_ids=shifted(data[LABELS]), use_cache=False)
        return {"logits": outputs.logits}

    def scored(self, model: nn.Module, data: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the logits, and as `written` the texts that the model writes."""
        outputs = self(model, data)
        labels = data[LABELS]
        if is_fake(labels):  # a dry run has no tokens to end a text by
            return outputs
        with logits_at_once():
            answers = generate(model, _inputs(data), range(len(labels)), self.stops, self.generation)
        return {**outputs, WRITTEN: _filled(answers).to(labels.device)}


def _inputs(data: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in data.items() if name != LABELS}


def _filled(answers: list[list[int]]) -> Tensor:
    longest = max(map(len, answers), default=0)
    rows = [[*each, *[NO_TOKEN] * (longest - len(each))] for each in answers]
    return torch.tensor(rows, dtype=torch.long).reshape(len(answers), longest)
