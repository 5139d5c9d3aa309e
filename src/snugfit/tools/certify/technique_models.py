"""Small models that a technique is tried on, as somebody would have written them: nothing of Snugfit in here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 11
WIDTH = 8
FEATURES = 3
LONGEST = 9
IMAGE = 8


class Reader(nn.Module):
    """A tiny transformer with tied weights, dropout, padding, nested inputs, a buffer and a transposed weight.

    `per_token` gives logits for each position; otherwise one row of logits and a pair of embeddings for each
    text. `rows_seen` is a statistic of the batches that went through it in training.
    """

    rows_seen: Tensor

    def __init__(self, dropout: float = 0.0, per_token: bool = True, width: int = WIDTH) -> None:
        super().__init__()
        self.per_token = per_token
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(LONGEST, width)
        self.mix = nn.Linear(FEATURES, width)
        self.mix.weight = nn.Parameter(
            self.mix.weight.detach().t().contiguous().t()
        )  # columns first in memory
        self.block = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout, batch_first=True)
        self.unused = nn.Linear(2, 2)
        self.head = nn.Linear(width, VOCABULARY)
        self.head.weight = self.tokens.weight
        self.register_buffer("rows_seen", torch.zeros((), dtype=torch.int64))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(0.5)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, context: dict[str, Any]
    ) -> dict[str, Tensor]:
        if self.training:
            self.rows_seen += input_ids.shape[0]
        assert len(context["names"]) == input_ids.shape[0]
        features = self.mix(context["numbers"]["features"])
        hidden = self.tokens(input_ids) + self.places.weight[: input_ids.shape[1]] + features.unsqueeze(1)
        hidden = self.block(hidden, src_key_padding_mask=attention_mask == 0)
        if self.per_token:
            return {"logits": self.head(hidden)}
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
        return {"logits": self.head(pooled), "query": pooled, "key": features}


class FeedForward(nn.Module):
    """Two layers on the channels of each place, beside the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 6)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(6, 4)

    def forward(self, images: Tensor) -> Tensor:
        places = images.movedim(1, -1)
        changed: Tensor = self.fc2(self.act(self.fc1(places)))
        return images + changed.movedim(-1, 1)


FURTHER_LAYERS: Mapping[str, Callable[[], Sequence[nn.Module]]] = {
    # right behind a convolution it would leave nothing of its bias
    "batch_norm": lambda: [nn.GELU(), nn.BatchNorm2d(4)],
    "feed_forward": lambda: [FeedForward()],
    "strided": lambda: [nn.MaxPool2d(3, stride=2, padding=1), nn.Conv2d(4, 4, 3, stride=2, padding=1)],
}


class Viewer(nn.Module):
    """A tiny residual net with attention on images of any size, with dropout, tied weights and a statistic of what went through it.

    Args:
        layers: names of `FURTHER_LAYERS` that stand behind the first convolution, for what changes such layers.
    """

    rows_seen: Tensor

    def __init__(self, dropout: float = 0.0, layers: Sequence[str] = ()) -> None:
        super().__init__()
        self.stem: nn.Module = nn.Conv2d(1, 4, 3, padding=1)
        if layers:
            self.stem = nn.Sequential(
                self.stem, *(each for name in layers for each in FURTHER_LAYERS[name]())
            )
        self.blocks = nn.ModuleList([nn.Sequential(nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3, padding=1))] * 2)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.mix = nn.Linear(4, 4)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(4, 3)
        self.register_buffer("rows_seen", torch.zeros((), dtype=torch.int64))

    def forward(self, pixels: Tensor) -> Tensor:
        if self.training:
            self.rows_seen += pixels.shape[0]
        hidden = self.stem(pixels)
        for block in self.blocks:
            hidden = hidden + self.run(block, F.gelu(hidden))
        places = hidden.flatten(2).transpose(1, 2)
        mixed = places + self.mix(self.attention(places, places, places, need_weights=False)[0])
        logits: Tensor = self.run(self.head, self.dropout(mixed.mean(dim=1)))
        return logits

    def run(self, module: nn.Module, inputs: Tensor) -> Tensor:
        outputs: Tensor = module(inputs)
        return outputs


def contrastive(
    outputs: dict[str, Tensor], data: dict[str, Any], temperature: float = 0.5
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the labels plus InfoNCE of each query among all keys, and weights.

    A row without a label (-100) has weight 0 and stays a negative of the others.
    """
    labels = data["labels"]
    counted = labels != -100
    values = F.cross_entropy(outputs["logits"], labels, ignore_index=-100, reduction="none")
    scores = outputs["query"] @ outputs["key"].T / temperature
    values = values + F.cross_entropy(
        scores, torch.arange(len(scores), device=scores.device), reduction="none"
    )
    return values, counted.to(values.dtype)
