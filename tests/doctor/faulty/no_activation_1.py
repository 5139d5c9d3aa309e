"""A network with a hidden layer and no activation, which is a linear model."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
rows = torch.randn(256, 2)
targets = (rows[:, :1] * rows[:, 1:]).sign().clamp(min=0)
network = nn.Sequential(
    nn.Linear(2, 16),
    nn.Linear(16, 1),  # <- here
)
optimizer = torch.optim.Adam(network.parameters(), 1e-2)
for epoch in range(5):
    for batch in torch.randperm(256).split(32):
        loss = nn.functional.binary_cross_entropy_with_logits(network(rows[batch]), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
