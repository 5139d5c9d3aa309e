"""Ten batches in windows of four: two are thrown away at the end of each epoch."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(80, 6), torch.randn(80, 1)), batch_size=8, shuffle=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _epoch in range(2):
    optimizer.zero_grad()
    for index, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y) / 4
        loss.backward()
        if (index + 1) % 4 == 0:
            optimizer.step()  # <- here
            optimizer.zero_grad()
