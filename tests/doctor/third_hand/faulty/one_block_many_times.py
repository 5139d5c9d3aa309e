"""Residual MLP."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())

    def forward(self, x):
        return x + self.inner(x)


class Net(nn.Module):
    def __init__(self, width=24, depth=4):
        super().__init__()
        self.stem = nn.Linear(8, width)
        self.blocks = nn.Sequential(*[Block(width)] * depth)  # <- here
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)))  # <- here


torch.manual_seed(0)
x = torch.randn(256, 8)
y = (x[:, 0] * x[:, 1] > 0).long()
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(3):
    for rows, labels in DataLoader(TensorDataset(x, y), 32, shuffle=True):
        loss = nn.functional.cross_entropy(model(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
