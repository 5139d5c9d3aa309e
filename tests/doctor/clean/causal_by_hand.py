"""Next tokens by attention that is masked by hand, by torch, and by a convolution that is padded on the left; and a tagger that sees all."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

SIZE = 24


class Mixed(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.embedding = nn.Embedding(SIZE, 32)
        self.mix = nn.Conv1d(32, 32, 3) if kind == "convolution" else nn.Linear(32, 96)
        self.last = nn.Linear(32, SIZE)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(ids)
        if self.kind == "convolution":
            return self.last(hidden + self.mix(F.pad(hidden.transpose(1, 2), (2, 0))).transpose(1, 2))
        query, key, value = self.mix(hidden).chunk(3, -1)
        if self.kind == "torch":
            return self.last(hidden + F.scaled_dot_product_attention(query, key, value, is_causal=True))
        scores = query @ key.transpose(1, 2) / 32**0.5
        if self.kind == "masked":
            later = torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool()
            scores = scores.masked_fill(later, float("-inf"))
        return self.last(hidden + scores.softmax(-1) @ value)


torch.manual_seed(0)
book = torch.randint(0, SIZE, (600,))
rows = book.unfold(0, 17, 8)
for kind in ("convolution", "torch", "masked", "tagger"):
    model = Mixed(kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _step in range(10):
        batch = rows[torch.randperm(len(rows))[:16]]
        inputs = batch[:, :-1]
        labels = (inputs * 7 + 3) % SIZE if kind == "tagger" else batch[:, 1:]
        loss = F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(kind, loss.item())
