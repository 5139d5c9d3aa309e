"""Transfer learning, notebook."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
y = torch.randint(0, 4, (256,))
x = torch.randn(256, 3, 12, 12) + 0.3 * y.view(-1, 1, 1, 1)
backbone = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
for param in backbone.parameters():
    param.requires_grad = False
model = nn.Sequential(backbone, nn.Linear(32, 4))
optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=5e-3)
for epoch in range(2):
    for images, labels in DataLoader(TensorDataset(x, y), 32, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
