"""A range test whose weights are put back by load_state_dict, and a rate that rises evenly and stays, as a warm-up."""

from __future__ import annotations

import copy

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))


def update(optimizer):
    rows = torch.randn(24, 8)
    loss = nn.functional.cross_entropy(model(rows), rows[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


start = copy.deepcopy(model.state_dict())
tested = torch.optim.Adam(model.parameters(), lr=1e-6)
for _ in range(30):
    update(tested)
    tested.param_groups[0]["lr"] *= 1.5
model.load_state_dict(start)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
for _ in range(20):
    update(optimizer)
    optimizer.param_groups[0]["lr"] *= 1.45
for _ in range(10):
    print(update(optimizer))
