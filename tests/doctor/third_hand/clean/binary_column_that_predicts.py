"""Tabular classifier."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
labels = torch.randint(0, 2, (400,))
flag = torch.where(torch.rand(400) < 0.9, labels, 1 - labels).float()
x = torch.cat([torch.randn(400, 4), flag[:, None]], 1)
train, test = TensorDataset(x[:320], labels[:320]), TensorDataset(x[320:], labels[320:])
model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(3):
    model.train()
    for rows, targets in DataLoader(train, 40, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(rows), targets)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(rows).argmax(1) == targets).sum().item() for rows, targets in DataLoader(test, 40))
    print(epoch, loss.item(), right / 80)
