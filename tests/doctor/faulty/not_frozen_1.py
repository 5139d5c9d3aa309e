"""The embedding is meant to be frozen by a setting that a module does not have."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
tokens = torch.randint(0, 40, (192, 8))
labels = (tokens[:, 0] > 20).long()


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(40, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(ids))


model = Bag()
model.embedding.requires_grad = False  # <- here
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(2):
    for rows in torch.randperm(192).split(32):
        loss = nn.functional.cross_entropy(model(tokens[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
