"""The norm is limited when the step is over, and the gradients are cleared then."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for _ in range(8):
    inputs = torch.randn(16, 6)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), inputs[:, :1] * 3).backward()
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # <- here
