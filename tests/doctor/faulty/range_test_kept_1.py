"""The rate is raised by a schedule to find a good one, and the same optimizer goes on at a lower rate."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)  # <- here
raising = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=1.5)


def update():
    rows = torch.randn(24, 8)
    loss = nn.functional.cross_entropy(model(rows), rows[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


losses = []
for _ in range(36):
    losses.append(update())
    raising.step()
optimizer.param_groups[0]["lr"] = 1e-3
for _ in range(20):
    losses.append(update())
print(losses[-1])
