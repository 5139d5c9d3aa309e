"""Means over different numbers of tokens are averaged over the window."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(40, 16), nn.Linear(16, 40))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
lengths = [12, 3, 8, 5, 12, 2, 9, 4]
for update in range(4):
    for length in lengths[2 * update : 2 * update + 2]:
        tokens = torch.randint(1, 40, (4, 13))
        labels = tokens[:, 1:].clone()
        labels[:, length:] = -100
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())  # <- here
        (loss / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
