"""Convolutions with a bias before batch norms."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Conv2d(8, 8, 3),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Flatten(),
)
head = nn.Linear(128, 4)
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=1e-2)
for _ in range(4):
    pictures, labels = torch.randn(16, 3, 8, 8), torch.randint(0, 4, (16,))
    loss = nn.functional.cross_entropy(head(model(pictures)), labels)  # <- here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
