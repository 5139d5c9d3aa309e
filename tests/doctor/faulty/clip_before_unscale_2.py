"""The optimizer steps past the scaler."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(6, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
for _ in range(4):
    loss = nn.functional.l1_loss(model(torch.randn(16, 6)), torch.randn(16, 1))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    optimizer.step()  # <- here
    scaler.update()
