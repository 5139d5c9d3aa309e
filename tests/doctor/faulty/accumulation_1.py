"""Four micro-batches are summed, and the loss is not divided."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 6), torch.arange(64) % 3), batch_size=8, shuffle=True)
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
for _epoch in range(2):
    for index, (x, y) in enumerate(loader):
        criterion(model(x), y).backward()  # <- here
        if (index + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
