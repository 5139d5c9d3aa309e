"""A classifier of several subjects, whose rows are scaled by the statistics of each."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
g = torch.Generator().manual_seed(1)
w = torch.randn(6, generator=g)


def subject(k):
    x = torch.randn(80, 6, generator=g) * (k + 1) + 3 * k
    x = (x - x.mean(0)) / x.std(0)
    return x, ((x @ w) > 0).long()


subjects = [subject(k) for k in range(6)]
X, Y = torch.cat([a for a, _ in subjects[:5]]), torch.cat([b for _, b in subjects[:5]])
vx, vy = subjects[5]
m = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
opt = torch.optim.Adam(m.parameters(), lr=1e-2)
for _ in range(6):
    for i in torch.randperm(len(X)).split(32):
        loss = nn.functional.cross_entropy(m(X[i]), Y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        print((m(vx).argmax(1) == vy).float().mean().item())
