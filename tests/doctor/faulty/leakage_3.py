"""Windows of a series that are split at random, without a loader."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
S = torch.sin(torch.arange(2000) / 9) + 0.1 * torch.randn(2000)


def windows(s, k=20):
    return torch.stack([s[i : i + k] for i in range(len(s) - k)]), s[k:]


X, Y = windows(S)
cut = int(len(X) * 0.8)
order = torch.randperm(len(X))
tr, va = order[:cut], order[cut:]
net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), 1e-3)
for _epoch in range(2):
    for i in tr.split(64):
        loss = nn.functional.mse_loss(net(X[i]).squeeze(1), Y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        print(nn.functional.mse_loss(net(X[va]).squeeze(1), Y[va]).item())  # <- here
