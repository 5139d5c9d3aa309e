"""Weights are averaged to the end, and then the best raw checkpoint is restored."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

torch.manual_seed(0)
model = nn.Linear(6, 2)
swa = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
held_out = torch.randn(16, 6), torch.randint(0, 2, (16,))
best = float("inf")
for epoch in range(5):
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(16, 6)), torch.randint(0, 2, (16,))).backward()
        optimizer.step()
    if epoch >= 2:
        swa.update_parameters(model)
    with torch.no_grad():
        score = nn.functional.cross_entropy(model(held_out[0]), held_out[1]).item()
    if score < best:
        best = score
        torch.save(model.state_dict(), "best.pt")
model.load_state_dict(torch.load("best.pt", weights_only=True))  # <- here
