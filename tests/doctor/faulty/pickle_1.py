"""The whole module is saved, and loaded with everything allowed."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(torch.randn(16, 6)), torch.randn(16, 1)).backward()
    optimizer.step()
torch.save(model, "model.pt")  # <- here
