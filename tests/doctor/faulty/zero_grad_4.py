"""Of two halves of a batch the first is cleared before anything steps."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 6)
y = x[:, :1].sin()
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for number, rows in enumerate(torch.randperm(256).split(16)):
        model.zero_grad()  # <- here
        loss = nn.functional.mse_loss(model(x[rows]), y[rows]) / 2
        loss.backward()
        if number % 2:
            optimizer.step()
    print(epoch, loss.item())
