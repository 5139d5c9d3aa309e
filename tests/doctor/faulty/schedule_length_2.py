"""A warm-up and a decay that are computed in each step, logged, and never given to the optimizer."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(8)
history = []
net = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 3))
optim = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
count = 0
while count < 30:
    rows = torch.randn(16, 10)
    current_lr = 0.1 * min(1.0, (count + 1) / 5) * (1 - count / 30)  # <- here
    optim.zero_grad()
    nn.functional.cross_entropy(net(rows), rows[:, :3].argmax(1)).backward()
    optim.step()
    history.append(current_lr)
    count += 1
