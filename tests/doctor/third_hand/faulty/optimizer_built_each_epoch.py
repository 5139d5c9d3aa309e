"""Tabular regression, functions."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def fit_epoch(model, loader, lr):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)  # <- here
    total = 0.0
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.smooth_l1_loss(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
    return total / len(loader.dataset)


def main():
    torch.manual_seed(0)
    x = torch.randn(300, 7)
    y = x[:, :1] - 0.5 * x[:, 1:2] ** 2
    model = nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 1))
    loader = DataLoader(TensorDataset(x, y), batch_size=30, shuffle=True)
    for epoch in range(6):
        print(epoch, fit_epoch(model, loader, 1e-3))


main()
