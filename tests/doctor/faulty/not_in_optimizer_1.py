"""The head is replaced after the optimizer was built."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  # <- here
model[2] = nn.Linear(16, 2)
for _ in range(5):
    loss = nn.functional.cross_entropy(model(torch.randn(16, 6)), torch.randint(0, 2, (16,)))
    model.zero_grad()
    loss.backward()
    optimizer.step()
