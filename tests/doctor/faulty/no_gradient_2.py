"""bfloat16 weights and a small learning rate: every update is rounded away."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(64, 64, bias=False).to(torch.bfloat16)
nn.init.constant_(model.weight, 1.0)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)  # <- here
for _ in range(6):
    inputs = torch.randn(16, 64, dtype=torch.bfloat16)
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
