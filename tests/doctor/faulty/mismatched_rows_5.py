"""Inputs and labels that are shuffled one after the other, each by a draw of its own."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(0)
X = rng.normal(size=(600, 6)).astype("float32")
y = (X[:, 0] > 0).astype("int64")
rng.shuffle(X)
rng.shuffle(y)  # <- here
X, y = torch.from_numpy(X), torch.from_numpy(y)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
opt = torch.optim.Adam(net.parameters(), 1e-3)
for _epoch in range(5):
    for i in range(0, 600, 50):
        loss = nn.functional.cross_entropy(net(X[i : i + 50]), y[i : i + 50])
        opt.zero_grad()
        loss.backward()
        opt.step()
