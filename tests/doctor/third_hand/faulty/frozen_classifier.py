"""Transfer learning, notebook."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
images = torch.randn(192, 3, 16, 16)
labels = torch.randint(0, 2, (192,))
loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)

backbone = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
model = nn.Sequential(backbone, nn.Linear(8, 2))
for param in model.parameters():
    param.requires_grad = False  # <- here

criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  # <- here
for epoch in range(3):
    running = 0.0
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.requires_grad = True  # <- here
        loss.backward()  # <- here
        optimizer.step()  # <- here
        running += loss.item()
    print(epoch, running / len(loader))
