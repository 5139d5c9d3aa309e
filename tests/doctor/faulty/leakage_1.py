"""Rows are drawn with replacement before they are split."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs, labels = torch.randn(60, 6), torch.arange(60) % 2
drawn = torch.randint(0, 60, (100,))
inputs, labels = inputs[drawn], labels[drawn]
train = DataLoader(TensorDataset(inputs[:80], labels[:80]), batch_size=16, shuffle=True)
valid = DataLoader(TensorDataset(inputs[80:], labels[80:]), batch_size=10)
model = nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in train:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
with torch.no_grad():
    for x, y in valid:
        scores = model(x)  # <- here
        print(nn.functional.cross_entropy(scores, y).item())
