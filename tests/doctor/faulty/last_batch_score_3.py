"""A sum that begins anew with each batch, so that the last batch alone is scored."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(480, 6)
Y = (X[:, 0] > 0).long()
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
opt = torch.optim.Adam(net.parameters(), 1e-2)
tl, vl = (
    DataLoader(TensorDataset(X[:320], Y[:320]), 40, shuffle=True),
    DataLoader(TensorDataset(X[320:], Y[320:]), 40),
)


def validate():
    with torch.no_grad():
        for x, y in vl:
            total = 0
            total += nn.functional.cross_entropy(net(x), y, reduction="sum").item()
        return total / len(vl.dataset)  # <- here


for _e in range(4):
    for x, y in tl:
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(validate())
