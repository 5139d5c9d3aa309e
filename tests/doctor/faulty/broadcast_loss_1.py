"""Predictions of a column against targets of a row."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
inputs = torch.randn(64, 6)
targets = inputs[:, 0] - 2 * inputs[:, 1]
for start in range(0, 64, 16):
    rows = slice(start, start + 16)
    loss = nn.functional.mse_loss(model(inputs[rows]), targets[rows])  # <- here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
