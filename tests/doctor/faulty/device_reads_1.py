"""The loss of each micro-batch is read as a number for the running mean."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
total = 0.0
for batch in range(24):
    inputs = torch.randn(16, 5)
    loss = nn.functional.mse_loss(model(inputs), inputs[:, :1]) / 4
    loss.backward()
    total += loss.item()  # <- here
    if (batch + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
print(total)
