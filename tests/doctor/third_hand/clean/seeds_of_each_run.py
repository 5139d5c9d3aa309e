"""Tabular classifier, three seeds."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

source = torch.Generator().manual_seed(5)
x = torch.randn(256, 6, generator=source)
y = (x[:, 0] + x[:, 1] > 0).long()


def run(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(2):
        for rows, labels in DataLoader(TensorDataset(x, y), 32, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(rows), labels)
            loss.backward()
            optimizer.step()
    return loss.item()


print([run(seed) for seed in (0, 1, 2)])
