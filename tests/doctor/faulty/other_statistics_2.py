"""A regression whose test rows are scaled by their own mean and deviation."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn


def standardise(a):
    return (a - a.mean(axis=0)) / a.std(axis=0)


rng = np.random.default_rng(0)
train, test = rng.normal(3, 2, (600, 6)), rng.normal(4, 2.5, (200, 6))
w = rng.normal(size=6)
y_train, y_test = train @ w, test @ w
m, s = train.mean(axis=0), train.std(axis=0)
X_train = torch.tensor(standardise(train), dtype=torch.float32)
X_test = torch.tensor(standardise(test), dtype=torch.float32)  # <- here
Y = torch.tensor(y_train, dtype=torch.float32)
Yt = torch.tensor(y_test, dtype=torch.float32)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.Adam(net.parameters(), 1e-3)
for _epoch in range(5):
    net.train()
    for i in torch.randperm(600).split(50):
        loss = nn.functional.mse_loss(net(X_train[i]).squeeze(1), Y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        print(nn.functional.l1_loss(net(X_test).squeeze(1), Yt).item())
