"""An autoencoder of tables with as many rows as columns, whose targets are transposed."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
tables = torch.randn(192, 24)
loader = DataLoader(TensorDataset(tables, tables.flip(1)), batch_size=24, shuffle=True)
model = nn.Sequential(nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 24))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _epoch in range(2):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y.T)  # <- here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
