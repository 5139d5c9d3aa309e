"""A loader that is made for each epoch with one generator, which goes on."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(400, 6)
Y = (X[:, 0] > 0).long()
g = torch.Generator().manual_seed(5)


def loader():
    return DataLoader(TensorDataset(X, Y), 40, shuffle=True, generator=g)


net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
opt = torch.optim.Adam(net.parameters(), 1e-3)
for _epoch in range(5):
    for x, t in loader():
        loss = nn.functional.cross_entropy(net(x), t)
        opt.zero_grad()
        loss.backward()
        opt.step()
