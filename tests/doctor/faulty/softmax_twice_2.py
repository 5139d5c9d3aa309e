"""A sigmoid at the end of a model, then a loss that takes one, through a squeeze."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(7, 12), nn.ReLU(), nn.Linear(12, 1), nn.Sigmoid())  # <- here
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(6):
    inputs = torch.randn(20, 7)
    labels = (inputs[:, 0] > 0).float()
    loss = nn.functional.binary_cross_entropy_with_logits(model(inputs).squeeze(1), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
