"""Regression with weights of rows."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(320, 5)
y = (x[:, :2].sum(1, keepdim=True)).sin()
importance = torch.rand(320) + 0.5
loader = DataLoader(TensorDataset(x, y, importance), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 1))
criterion = nn.MSELoss(reduction="none")
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
for epoch in range(3):
    for inputs, targets, weights in loader:
        errors = criterion(model(inputs), targets)
        loss = (errors * weights).mean()  # <- here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
