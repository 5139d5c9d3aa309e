"""A cosine over the epochs that is stepped after every batch."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
epochs = 4
batches = DataLoader(TensorDataset(torch.randn(60, 5), torch.arange(60) % 3), batch_size=10, shuffle=True)
net = nn.Linear(5, 3)
opt = torch.optim.AdamW(net.parameters(), lr=0.01)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=epochs)  # <- here
for _epoch in range(epochs):
    for x, y in batches:
        opt.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        opt.step()
        cosine.step()
