"""Audio scene classifier with mixup."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
scene = torch.randint(0, 5, (300,))
spectra = torch.randn(300, 1, 8, 16) + 0.5 * scene[:, None, None, None]
loader = DataLoader(
    TensorDataset(spectra, nn.functional.one_hot(scene, 5).float()), batch_size=50, shuffle=True
)
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def shuffle(t):
    return t[torch.randperm(len(t))]


for epoch in range(3):
    for x, y in loader:
        lam = float(np.random.beta(0.4, 0.4))
        x = lam * x + (1 - lam) * shuffle(x)
        y = lam * y + (1 - lam) * shuffle(y)  # <- here
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
