"""The schedule is made for micro-batches and stepped once per update."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(96, 6), torch.randn(96, 1)), batch_size=8, shuffle=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
epochs, accumulate = 2, 4
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=epochs * len(loader))  # <- here
for _epoch in range(epochs):
    for index, (x, y) in enumerate(loader):
        (nn.functional.mse_loss(model(x), y) / accumulate).backward()
        if (index + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
