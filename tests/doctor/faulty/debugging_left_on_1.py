"""Anomaly mode, switched on for a fault that is long mended."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
torch.autograd.set_detect_anomaly(True)  # <- here
model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for _ in range(12):
    inputs = torch.randn(16, 5)
    loss = nn.functional.mse_loss(model(inputs), inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
