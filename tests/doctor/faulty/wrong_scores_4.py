"""Marks of pictures, several of which may be right, with the loss of classes that exclude each other."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(6)
net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
marks = torch.randn(5, 64)
for _ in range(16):
    present = torch.bernoulli(torch.full((24, 5), 0.4))
    pictures = (present @ marks + torch.randn(24, 64)).view(24, 1, 8, 8)
    loss = nn.functional.cross_entropy(net(pictures), present)  # <- here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
