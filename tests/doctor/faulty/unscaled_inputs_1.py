"""Pictures as bytes, turned into floats and nothing more."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for _ in range(4):
    pictures = torch.randint(0, 256, (16, 3, 12, 12), dtype=torch.uint8)
    labels = torch.randint(0, 4, (16,))
    scores = model(pictures.float())  # <- here
    optimizer.zero_grad()
    nn.functional.cross_entropy(scores, labels).backward()
    optimizer.step()
