"""The schedule is stepped before the optimizer, at the beginning of each epoch."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
for _epoch in range(3):
    scheduler.step()  # <- here
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(torch.randn(8, 4)), torch.randn(8, 1)).backward()
        optimizer.step()
