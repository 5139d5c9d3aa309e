"""Transfer learning, notebook."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
classifier = nn.Linear(32, 4)
vgg = nn.Sequential(features, classifier)

# freeze training for all "features" layers
for param in features.parameters():
    param.require_grad = False  # <- here

y = torch.randint(0, 4, (256,))
x = torch.randn(256, 3, 12, 12) + 0.3 * y.view(-1, 1, 1, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(vgg.parameters(), lr=0.01)
for epoch in range(2):
    for data, target in loader:
        optimizer.zero_grad()
        loss = criterion(vgg(data), target)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
