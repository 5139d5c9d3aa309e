"""A profiler around the whole training."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):  # <- here
    for _ in range(12):
        inputs = torch.randn(16, 5)
        loss = nn.functional.mse_loss(model(inputs), inputs[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
