"""Mixed pictures with smoothed labels, by class and by probability."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, bias=False),
    nn.GroupNorm(2, 8),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(8, 5),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
for step in range(12):
    pictures, labels = torch.rand(16, 3, 10, 10), torch.randint(0, 5, (16,))
    share = float(torch.distributions.Beta(0.4, 0.4).sample())
    order = torch.randperm(16)
    mixed = share * pictures + (1 - share) * pictures[order]
    if step % 2:
        loss = share * criterion(model(mixed), labels) + (1 - share) * criterion(model(mixed), labels[order])
    else:
        soft = nn.functional.one_hot(labels, 5).float()
        loss = nn.functional.cross_entropy(model(mixed), share * soft + (1 - share) * soft[order])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
