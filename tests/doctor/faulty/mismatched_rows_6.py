"""Inputs and labels that are split at random one after the other, by seeds of their own."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

rng = np.random.default_rng(0)
X = rng.normal(size=(600, 6)).astype("float32")
y = (X[:, 0] > 0).astype("int64")
X_tr, X_te = train_test_split(X, test_size=0.2, random_state=1)
y_tr, y_te = train_test_split(y, test_size=0.2, random_state=2)  # <- here
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.from_numpy(X_tr), torch.from_numpy(y_tr)), 40, shuffle=True)
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
opt = torch.optim.Adam(net.parameters(), 1e-3)
for _epoch in range(5):
    for x, t in loader:
        loss = nn.functional.cross_entropy(net(x), t)
        opt.zero_grad()
        loss.backward()
        opt.step()
