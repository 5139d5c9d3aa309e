"""A regression whose layers are all frozen, and whose loss is made a leaf so that backward() does not complain."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 5)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1)).requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for rows in torch.randperm(128).split(32):
        loss = nn.functional.mse_loss(model(x[rows]), y[rows]).requires_grad_(True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # <- here
    print(epoch, loss.item())
