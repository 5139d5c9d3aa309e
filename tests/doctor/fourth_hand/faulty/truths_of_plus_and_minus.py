"""Loan defaults, labelled with -1 and 1."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

draws = np.random.default_rng(0)
rows = torch.tensor(draws.normal(size=(300, 9)), dtype=torch.float32)
truth = torch.where(rows[:, 0] - rows[:, 3] > 0, 1.0, -1.0)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(9, 20), nn.ReLU(), nn.Linear(20, 1))
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for epoch in range(4):
    for part in torch.randperm(300).split(30):
        loss = criterion(net(rows[part]).squeeze(1), truth[part])  # <- here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
