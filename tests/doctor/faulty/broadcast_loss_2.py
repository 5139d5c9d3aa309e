"""A squared difference of one's own, of a row and a column."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for _ in range(8):
    inputs = torch.randn(10, 6)
    targets = inputs.sum(1)
    loss = ((targets - model(inputs)) ** 2).mean()  # <- here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
