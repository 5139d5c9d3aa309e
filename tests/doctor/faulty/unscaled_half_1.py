"""A network in mixed precision of float16 whose loss is not scaled."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
rows = torch.randn(256, 16)
targets = rows @ torch.randn(16, 3) + 0.1 * torch.randn(256, 3)
loader = DataLoader(TensorDataset(rows, targets), batch_size=16, shuffle=True)
network = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 3))
optimizer = torch.optim.AdamW(network.parameters(), 1e-3)
for epoch in range(3):
    for batch, wanted in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            predicted = network(batch)
        loss = nn.functional.mse_loss(predicted.float(), wanted)
        loss.backward()  # <- here
        optimizer.step()
    print(epoch, loss.item())
