"""Regression with uncertainty."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Bayesian(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(1, 48)
        self.second = nn.Linear(48, 1)

    def forward(self, x):
        return self.second(F.dropout(torch.tanh(self.first(x)), 0.1, training=True))


torch.manual_seed(0)
x = torch.rand(256, 1) * 4 - 2
y = torch.sin(2 * x) + 0.05 * torch.randn_like(x)
model = Bayesian()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for _epoch in range(3):
    for rows, targets in DataLoader(TensorDataset(x, y), 32, shuffle=True):
        loss = F.mse_loss(model(rows), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
model.eval()
grid = torch.linspace(-2, 2, 40)[:, None]
with torch.no_grad():
    draws = torch.stack([model(grid) for _ in range(20)])
print(loss.item(), draws.std(0).mean().item())
