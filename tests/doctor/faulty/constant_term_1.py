"""A regression whose penalty of the weights is computed without their graph."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(256, 12)
outputs = inputs[:, :2].sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _epoch in range(3):
    for rows in torch.randperm(256).split(32):
        penalty = sum(each.data.abs().sum() for each in model.parameters())  # <- here
        loss = nn.functional.mse_loss(model(inputs[rows]), outputs[rows]) + 1e-3 * penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
