"""A classifier whose batches are slices that begin one row after each other."""

from __future__ import annotations

import torch
from torch import nn


class Data:
    def __init__(self, n=1200, bs=32):
        self.X = torch.randn(n, 8)
        self.Y = (self.X[:, 0] > 0).long()
        self.bs = bs

    def __len__(self):
        return len(self.X) // self.bs

    def batch(self, i):
        lo = i
        return self.X[lo : lo + self.bs], self.Y[lo : lo + self.bs]


torch.manual_seed(0)
d = Data()
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
opt = torch.optim.Adam(net.parameters(), 1e-3)
for _epoch in range(4):
    for i in range(len(d)):
        x, y = d.batch(i)
        loss = nn.functional.cross_entropy(net(x), y)  # <- here
        opt.zero_grad()
        loss.backward()
        opt.step()
