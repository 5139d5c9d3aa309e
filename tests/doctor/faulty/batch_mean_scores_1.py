"""A mean error of batches, of which the last has two rows."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
rows = torch.randn(98, 5)
targets = rows.sum(1, keepdim=True) / 2
train = DataLoader(TensorDataset(rows[:64], targets[:64]), batch_size=16, shuffle=True)
test = DataLoader(TensorDataset(rows[64:], targets[64:]), batch_size=16)
model = nn.Linear(5, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loss_of = nn.MSELoss()
for _ in range(3):
    for x, y in train:
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    error = 0.0
    with torch.no_grad():
        for x, y in test:
            error += loss_of(model(x), y).item()
    error /= len(test)  # <- here
    print(error)
