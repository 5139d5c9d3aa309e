"""A loop that clears, computes and differentiates, and forgets the step."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # <- here
for _ in range(12):
    inputs, labels = torch.randn(8, 5), torch.arange(8) % 3
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
