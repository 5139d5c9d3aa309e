"""Embeddings of texts: the mean of what an encoder puts out for their tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.batch import LABELS


@dataclass(frozen=True)
class TextEmbeddings:
    """The forward of an encoder for rows of some texts each: an embedding of each text, shape (rows, texts, width), as `logits`.

    A batch has `input_ids` and `attention_mask` (rows, texts, tokens), and `lengths`, the tokens of the longest text of each row, by which padding is cut.
    Its labels, which tell texts apart, go along as `texts`.

    Source: Reimers and Gurevych 2019, arXiv:1908.10084, section 3: the mean over the tokens that are no padding.
    """

    def __call__(self, model: nn.Module, data: Mapping[str, Any]) -> dict[str, Tensor]:
        width = max(data["lengths"])
        rows, texts = data["input_ids"].shape[:2]
        ids, mask = (data[name][:, :, :width].flatten(0, 1) for name in ("input_ids", "attention_mask"))
        hidden = model(input_ids=ids, attention_mask=mask)[0]
        hidden = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        embeddings = (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
        outputs = {"logits": embeddings.unflatten(0, (rows, texts))}
        return {**outputs, "texts": data[LABELS]} if LABELS in data else outputs
