"""Masked autoencoder of signals, cosine of its own."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader

torch.manual_seed(0)
signals = torch.randn(260, 32).cumsum(1) / 5
loader = DataLoader(signals, batch_size=8, shuffle=True)
net = nn.Sequential(nn.Linear(32, 24), nn.GELU(), nn.Linear(24, 32))
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
epochs, accumulate = 3, 4
steps = epochs * math.ceil(len(loader))  # <- here
schedule = CosineAnnealingLR(optimizer, steps)  # <- here
for epoch in range(epochs):
    for number, x in enumerate(loader):
        hidden = (torch.rand_like(x) < 0.5).float()
        loss = (((net(x * (1 - hidden)) - x) ** 2) * hidden).sum() / hidden.sum() / accumulate
        loss.backward()
        if (number + 1) % accumulate == 0 or number + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    print(epoch, loss.item(), optimizer.param_groups[0]["lr"])
