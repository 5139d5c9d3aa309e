"""The mask hides every label."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(30, 8), nn.Linear(8, 30))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    tokens = torch.randint(1, 30, (4, 9))
    labels = tokens[:, 1:].masked_fill(tokens[:, 1:] > 0, -100)  # <- here
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), labels.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
