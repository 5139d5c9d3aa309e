"""Pictures read folder by folder, one class after the other, by a loader that does not shuffle."""

from __future__ import annotations

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

CLASSES = ["bicycle", "boat", "bus", "car"]


class FolderLike(Dataset):
    """Lists the samples as ImageFolder does: sorted by class."""

    def __init__(self, per_class=48):
        g = torch.Generator().manual_seed(3)
        patterns = torch.randn(len(CLASSES), 3, 8, 8, generator=g)
        self.samples = []
        for index in range(len(CLASSES)):
            for _ in range(per_class):
                self.samples.append((patterns[index] + torch.randn(3, 8, 8, generator=g), index))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.samples[i]


torch.manual_seed(0)
loader = DataLoader(FolderLike(), batch_size=16)
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(72, 4))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
for epoch in range(2):
    running_loss = 0.0
    for inputs, labels in loader:  # <- here
        optimizer.zero_grad()
        loss = criterion(net(inputs), labels)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
    print(f"[{epoch + 1}] loss: {running_loss / len(loader):.3f}")
