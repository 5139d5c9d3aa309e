"""A language model with a moving average whose decay is the other way round."""

from __future__ import annotations

import copy

import torch
from torch import nn

torch.manual_seed(0)
text = torch.randint(0, 20, (800,)).cumsum(0) % 20
model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20))
slow = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(5):
    for start in torch.randint(0, 600, (8, 16)):
        x = torch.stack([text[at : at + 17] for at in start.tolist()])
        loss = nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, value in zip(slow.parameters(), model.parameters(), strict=True):
                mine.mul_(1 - 0.999).add_(value, alpha=0.999)  # <- here
    with torch.no_grad():
        held = text[700:741]
        print(epoch, nn.functional.cross_entropy(slow(held[None, :-1])[0], held[1:]).item())
