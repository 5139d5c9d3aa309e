"""A regression whose loss is divided for a window of four micro-batches, each of which has a step of its own."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
accumulation_steps = 4
rows = torch.randn(256, 16)
targets = rows @ torch.randn(16, 1)
loader = DataLoader(TensorDataset(rows, targets), batch_size=8, shuffle=True)
network = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(network.parameters(), 1e-3)
updates = 0
for epoch in range(2):
    for number, (batch, wanted) in enumerate(loader):
        if (number + 1) % accumulation_steps == 0:
            updates += 1
        loss = nn.functional.mse_loss(network(batch), wanted) / accumulation_steps
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()  # <- here
        optimizer.zero_grad()
    print(epoch, updates, loss.item())
