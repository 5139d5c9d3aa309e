"""Gradients are cleared between backward and step."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(6, 3)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(5):
    loss = nn.functional.cross_entropy(model(torch.randn(16, 6)), torch.randint(0, 3, (16,)))
    loss.backward()
    optimizer.zero_grad()  # <- here
    optimizer.step()
