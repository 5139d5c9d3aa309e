"""Tabular autoencoder."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
rows = torch.randn(320, 3) @ torch.randn(3, 12)
rows = (rows - rows.mean(0)) / rows.std(0)
model = nn.Sequential(nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 12))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(3):
    for (x,) in DataLoader(TensorDataset(rows), 32, shuffle=True):
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
