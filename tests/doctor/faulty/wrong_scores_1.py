"""A ReLU behind the last layer of a classifier of points, whose scores are reshaped."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 5), nn.ReLU())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(6):
    points, labels = torch.randn(4, 7, 3), torch.randint(0, 5, (4, 7))
    scores = model(points)
    loss = nn.functional.cross_entropy(scores.view(-1, 5), labels.view(-1))  # <- here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
