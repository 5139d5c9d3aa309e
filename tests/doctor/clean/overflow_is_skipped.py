"""A scale that is too large at first, and a batch that is not finite, which the script leaves out."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
for step in range(16):
    inputs = torch.randn(16, 6) * 1e4 ** (step < 3) / (0.0 if step == 9 else 1.0)
    loss = nn.functional.mse_loss(model(inputs), torch.randn(16, 1))
    if not torch.isfinite(loss):
        continue
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
