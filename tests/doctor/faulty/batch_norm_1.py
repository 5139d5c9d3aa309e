"""Batch norm in micro-batches of two, under accumulation."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    for _ in range(8):
        scores = model(torch.randn(2, 6))  # <- here
        (nn.functional.cross_entropy(scores, torch.randint(0, 2, (2,))) / 8).backward()
    optimizer.step()
