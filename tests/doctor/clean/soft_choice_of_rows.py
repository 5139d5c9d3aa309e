"""Attention that weighs all rows by a softmax."""

from __future__ import annotations

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.attn = nn.Linear(16, 5)
        self.items = nn.Parameter(torch.randn(5, 16))
        self.out = nn.Linear(16, 2)

    def forward(self, x):
        h = self.enc(x)
        w = self.attn(h).softmax(-1)
        return self.out(h + w @ self.items)


torch.manual_seed(0)
net = Net()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
X = torch.randn(256, 8)
Y = (X[:, 0] > 0).long()
for _step in range(30):
    i = torch.randint(0, 256, (32,))
    loss = nn.functional.cross_entropy(net(X[i]), Y[i])
    opt.zero_grad()
    loss.backward()
    opt.step()
