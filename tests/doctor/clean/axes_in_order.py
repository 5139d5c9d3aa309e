"""Scores whose classes are moved to the right axis, a softmax of attention over rows, an argmax over either axis of pairs."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
places = nn.Sequential(nn.Conv1d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv1d(12, 6, 1))
pool = nn.Linear(12, 6)
attend = nn.Linear(12, 1)
optimizer = torch.optim.Adam([*places.parameters(), *pool.parameters(), *attend.parameters()], lr=1e-3)
for _ in range(10):
    series = torch.randn(8, 3, 6)
    labels = series.abs().argmax(1)
    scores = places(series)
    loss = nn.functional.cross_entropy(scores.permute(0, 2, 1).reshape(-1, 6), labels.reshape(-1))
    bag = torch.randn(10, 12)
    weights = torch.softmax(attend(bag), dim=0)  # over the members of a bag
    loss = loss + nn.functional.cross_entropy(pool(weights.T @ bag), torch.tensor([3]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    scores = places(torch.randn(8, 3, 6))
    print((scores.argmax(1) == 0).sum())
