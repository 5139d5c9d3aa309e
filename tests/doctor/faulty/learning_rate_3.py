"""A small network with batch norms under a rate of 0.5 of Adam, which the norms survive."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(10)
net = nn.Sequential(
    nn.Linear(12, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64, bias=False),
    nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3),
)  # fmt: skip
optimizer = torch.optim.AdamW(net.parameters(), lr=0.5, weight_decay=0.0)  # <- here
for _ in range(30):
    rows = torch.randn(64, 12)
    loss = nn.functional.cross_entropy(net(rows), rows[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
