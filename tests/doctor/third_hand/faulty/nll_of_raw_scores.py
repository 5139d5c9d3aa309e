"""Tabular classifier, dataclass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Settings:
    width: int = 32
    rate: float = 1e-3
    epochs: int = 2
    batch: int = 32


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(10, width)
        self.outer = nn.Linear(width, 3)

    def forward(self, x):
        return self.outer(torch.relu(self.inner(x)))


settings = Settings()
torch.manual_seed(0)
features = torch.randn(256, 10)
kinds = features[:, :3].argmax(1)
model = Mlp(settings.width)
criterion = nn.NLLLoss()  # <- here
optimizer = torch.optim.Adam(model.parameters(), lr=settings.rate)
for epoch in range(settings.epochs):
    for x, y in DataLoader(TensorDataset(features, kinds), settings.batch, shuffle=True):
        optimizer.zero_grad()
        loss = criterion(model(x), y)  # <- here
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
