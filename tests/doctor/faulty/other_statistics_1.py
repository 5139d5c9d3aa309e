"""Pictures are divided by 255 for the training, and go into the test as bytes."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
labels = torch.arange(96) % 3
pictures = (torch.randint(0, 120, (96, 1, 8, 8)) + 60 * labels.view(-1, 1, 1, 1)).float()
scaled = pictures[:72] / 255 - 0.5
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(4):
    for rows in torch.randperm(72).split(24):
        loss = nn.functional.cross_entropy(model(scaled[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
with torch.no_grad():
    scores = model(pictures[72:])  # <- here
    print((scores.argmax(1) == labels[72:]).float().mean())
