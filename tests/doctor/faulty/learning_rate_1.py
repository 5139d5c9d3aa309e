"""A convolutional classifier by SGD with momentum at a rate of 5."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=5.0, momentum=0.9)  # <- here
for _ in range(30):
    labels = torch.randint(0, 4, (16,))
    images = torch.randn(16, 1, 8, 8) + labels.view(-1, 1, 1, 1)
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
