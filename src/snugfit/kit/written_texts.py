"""The forward of a model that reads one text and writes another, and the texts that it writes while it is scored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from snugfit.core.batch import LABELS
from snugfit.core.scalar_reads import is_fake
from snugfit.errors import SettingError
from snugfit.kit.generation import Generation, generate

WRITTEN = "written"
"""The entry of outputs with the tokens that were written, shape (rows, tokens), filled up with -1."""

NO_TOKEN = -1


@dataclass(frozen=True)
class WrittenTexts:
    """The forward for an encoder with a decoder: logits of each token of the labels, by the model's own rule for what the decoder reads.

    In evaluation it also writes a text of its own, as `generation` says, without a look at the labels.

    Args:
        generation: None where nothing is to be written.
        stops: tokens that end a text.
    """

    generation: Generation | None = None
    stops: tuple[int, ...] = ()

    def __call__(self, model: nn.Module, data: Mapping[str, Any]) -> dict[str, Tensor]:
        inputs = {name: value for name, value in data.items() if name != LABELS}
        rule: Any = model.prepare_decoder_input_ids_from_labels
        outputs: Any = model(**inputs, decoder_input_ids=rule(labels=data[LABELS]), use_cache=False)
        logits = {"logits": outputs.logits}
        if model.training or self.generation is None or is_fake(data[LABELS]):
            return logits
        if any(isinstance(each, DTensor) for each in model.parameters()):
            raise SettingError(
                "evaluate.metrics",
                "has metrics of written texts, and a model that is spread over devices writes none while it is trained",
                "Leave them out, and score them afterwards: snugfit evaluate RUN ROWS.",
            )
        rows = range(len(data[LABELS]))
        answers = generate(model, inputs, rows, self.stops, self.generation)
        return {**logits, WRITTEN: _filled(answers).to(data[LABELS].device)}


def _filled(answers: list[list[int]]) -> Tensor:
    longest = max(map(len, answers), default=0)
    return torch.tensor([[*each, *[NO_TOKEN] * (longest - len(each))] for each in answers]).view(-1, longest)
