"""A topic model's divergence gets the scores as they are, where logarithms of probabilities are asked for."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
counts = torch.rand(160, 12)
shares = counts / counts.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 12))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    for rows in torch.randperm(160).split(32):
        loss = nn.functional.kl_div(model(shares[rows]), shares[rows], reduction="batchmean")  # <- here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
