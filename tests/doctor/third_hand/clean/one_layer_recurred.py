"""Universal transformer, one layer in turns."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Recurrent(nn.Module):
    def __init__(self, width=24, turns=4):
        super().__init__()
        self.turns = turns
        self.stem = nn.Linear(8, width)
        self.layer = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        x = self.stem(x)
        for _ in range(self.turns):
            x = x + self.layer(x)
        return self.head(x)


torch.manual_seed(0)
x = torch.randn(256, 8)
y = (x[:, 0] * x[:, 1] > 0).long()
model = Recurrent()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(3):
    for rows, labels in DataLoader(TensorDataset(x, y), 32, shuffle=True):
        loss = nn.functional.cross_entropy(model(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
