"""Contrastive learning, siamese network."""

from __future__ import annotations

import torch
from torch import nn


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, first, second):
        return self.tower(first), self.tower(second)


def contrastive(first, second, same, margin=1.0):
    distance = (first - second).pow(2).sum(1).sqrt()  # <- here
    return (same * distance**2 + (1 - same) * (margin - distance).clamp(min=0) ** 2).mean()


torch.manual_seed(0)
rows = torch.randn(300, 10)
model = Siamese()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(30):
    left, right = torch.randint(0, 300, (64,)), torch.randint(0, 300, (64,))
    right[:4] = left[:4]
    same = (left == right).float()
    loss = contrastive(*model(rows[left], rows[right]), same)  # <- here
    optimizer.zero_grad()
    loss.backward()  # <- here
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
