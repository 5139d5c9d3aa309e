"""Gradients are never cleared."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(6):
    inputs, targets = torch.randn(16, 6), torch.randn(16, 1)
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()  # <- here
