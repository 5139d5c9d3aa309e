"""A temporal net gives classes before places, and its scores are viewed as places before classes."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv1d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv1d(16, 6, 3, padding=1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(10):
    series = torch.randn(8, 3, 20)
    labels = (series.sum(1) > 0).long() + 2 * (series[:, 0] > 1).long()
    loss = nn.functional.cross_entropy(model(series).reshape(8 * 20, 6), labels.reshape(-1))  # <- here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
