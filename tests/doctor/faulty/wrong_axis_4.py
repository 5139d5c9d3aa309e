"""Contrastive learning whose rows are scaled to a length of 1 over the batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
g = torch.Generator().manual_seed(1)
centres = torch.randn(8, 20, generator=g)
kind = torch.randint(0, 8, (512,), generator=g)
data = centres[kind] + 0.3 * torch.randn(512, 20, generator=g)
net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 16))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)


def nt_xent(a, b, t=0.2):
    n = len(a)
    z = F.normalize(torch.cat([a, b]), dim=0)  # <- here
    sim = z @ z.T / t
    sim.fill_diagonal_(-1e9)
    target = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(sim, target)


for epoch in range(5):
    for i in torch.randperm(512).split(64):
        x = data[i]
        loss = nt_xent(net(x + 0.1 * torch.randn_like(x)), net(x + 0.1 * torch.randn_like(x)))
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
