"""Standardised targets behind a sigmoid, which gives 0 to 1."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(8):
    inputs = torch.randn(24, 6)
    targets = inputs[:, 0]
    predictions = model(inputs).squeeze(1)
    loss = nn.functional.mse_loss(predictions, targets)  # <- here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
