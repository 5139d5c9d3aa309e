"""Temporal differences of a value net whose next value is part of the graph."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
value = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 1))
optimizer = torch.optim.Adam(value.parameters(), lr=1e-3)
for _ in range(12):
    states = torch.rand(20, 3)
    rewards, following = states.sum(1), states * 0.9
    targets = rewards + 0.9 * value(following).squeeze(-1)  # <- here
    loss = nn.functional.mse_loss(value(states).squeeze(-1), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
