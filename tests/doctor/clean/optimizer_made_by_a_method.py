"""A method makes the optimizer, once."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
X = torch.randn(400, 6)
Y = (X[:, 0] > 0).long()


class Run:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
        self.opt = self.make()

    def make(self):
        return torch.optim.Adam(self.net.parameters(), 1e-3)

    def epoch(self):
        for i in torch.randperm(400).split(40):
            loss = nn.functional.cross_entropy(self.net(X[i]), Y[i])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()


r = Run()
for _e in range(5):
    r.epoch()
