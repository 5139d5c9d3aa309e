"""Weight decay on everything."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)  # <- here
for _ in range(4):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(torch.randn(16, 6)), torch.randn(16, 1)).backward()
    optimizer.step()
