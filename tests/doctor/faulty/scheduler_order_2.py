"""The schedule belongs to an optimizer that was replaced."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(5):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(torch.randn(8, 4)), torch.randn(8, 1)).backward()
    optimizer.step()
    scheduler.step()  # <- here
