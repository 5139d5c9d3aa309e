"""A squared error of one's own over three micro-batches, summed up."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(1)
net = nn.Sequential(nn.Linear(3, 10), nn.SiLU(), nn.Linear(10, 1))
opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
micro_batches = [(torch.randn(8, 3), torch.randn(8, 1)) for _ in range(12)]
opt.zero_grad()
for number, (x, y) in enumerate(micro_batches, start=1):
    error = ((net(x) - y) ** 2).mean()
    error.backward()  # <- here
    if number % 3 == 0:
        opt.step()
        opt.zero_grad()
