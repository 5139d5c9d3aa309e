"""A tagger drops by a function that is not told the mode, and is scored."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded = F.dropout(self.embedding(tokens), 0.3)  # <- here
        return self.head(self.rnn(embedded)[0])


torch.manual_seed(0)
tokens = torch.randint(0, 30, (160, 8))
tags = tokens % 4
model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(2):
    model.train()
    for rows in torch.randperm(128).split(32):
        optimizer.zero_grad()
        F.cross_entropy(model(tokens[rows]).transpose(1, 2), tags[rows]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(epoch, (model(tokens[128:]).argmax(-1) == tags[128:]).float().mean().item())
