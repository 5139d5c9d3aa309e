"""Pictures that are mixed by one order, and the loss of their second labels by another."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
kind = torch.randint(0, 5, (320,))
pictures = torch.randn(320, 1, 8, 8) + 0.4 * kind[:, None, None, None]
loader = DataLoader(TensorDataset(pictures, kind), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
criterion = nn.CrossEntropyLoss()


def mixed(x, share):
    return share * x + (1 - share) * x[torch.randperm(len(x))]


for epoch in range(2):
    for x, y in loader:
        share = torch.distributions.Beta(1.0, 1.0).sample().item()
        scores = model(mixed(x, share))
        other = y[torch.randperm(len(y))]
        loss = share * criterion(scores, y)
        loss = loss + (1 - share) * criterion(scores, other)  # <- here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
