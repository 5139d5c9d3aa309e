"""A segmentation whose scores are brought from (batch, classes, height, width) to rows by a reshape, without a permute."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(7)
CLASSES = 4


class FCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=2, dilation=2), nn.ReLU()
        )
        self.classifier = nn.Conv2d(16, CLASSES, 1)

    def forward(self, x):
        return self.classifier(self.features(x))


def scenes(n, size=16):
    masks = torch.zeros(n, size, size, dtype=torch.long)
    for i in range(n):
        for label in range(1, CLASSES):
            r, c = torch.randint(0, size - 5, (2,)).tolist()
            masks[i, r : r + 5, c : c + 5] = label
    colours = torch.tensor([[0.0, 0, 0], [1, -1, 0], [-1, 1, 0], [0, 0, 1.5]])
    return colours[masks].permute(0, 3, 1, 2) + 0.3 * torch.randn(n, 3, size, size), masks


model = FCN()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
criterion = nn.CrossEntropyLoss()
for iteration in range(20):
    images, masks = scenes(8)
    logits = model(images)
    loss = criterion(logits.reshape(-1, CLASSES), masks.reshape(-1))  # <- here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if iteration % 5 == 0:
        print(iteration, loss.item())
