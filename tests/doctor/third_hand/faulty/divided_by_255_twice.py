"""Image classifier, functions."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def to_tensor(image):
    return torch.from_numpy(image).permute(2, 0, 1).float() / 255


class Pictures(Dataset):
    def __init__(self, rows):
        draws = np.random.default_rng(0)
        self.labels = draws.integers(0, 3, rows)
        self.images = (
            draws.integers(0, 160, (rows, 12, 12, 3)).astype("uint8")
            + (self.labels * 30).astype("uint8")[:, None, None, None]
        )

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = to_tensor(self.images[index])
        return image / 255.0, int(self.labels[index])  # <- here


torch.manual_seed(0)
loader = DataLoader(Pictures(256), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for epoch in range(2):
    for images, labels in loader:  # <- here
        loss = nn.functional.cross_entropy(model(images), labels)  # <- here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
