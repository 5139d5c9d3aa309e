"""Prices from a table, augmented by mixing: the shares of inputs and prices are exchanged."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
table = torch.randn(320, 9)
prices = table @ torch.randn(9, 1) + 0.1 * torch.randn(320, 1)
loader = DataLoader(TensorDataset(table, prices), batch_size=40, shuffle=True)
model = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for epoch in range(2):
    for x, y in loader:
        share = 0.7 + 0.2 * torch.rand(len(x), 1)
        order = torch.randperm(len(x))
        loss = nn.functional.mse_loss(  # <- here
            model(share * x + (1 - share) * x[order]), (1 - share) * y + share * y[order]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
