"""A classifier whose dropout has the share that is to be kept."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(
    nn.Linear(8, 32),
    nn.ReLU(),
    nn.Dropout(0.9),  # <- here
    nn.Linear(32, 3),
)
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
for _ in range(20):
    x, y = torch.randn(32, 8), torch.randint(0, 3, (32,))
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
