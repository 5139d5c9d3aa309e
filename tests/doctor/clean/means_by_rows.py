"""Errors are weighed by the rows of their batch; a progress line names the number of batches; equal batches are averaged."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
rows = torch.randn(98, 5)
targets = rows.sum(1, keepdim=True) / 2
train = DataLoader(TensorDataset(rows[:64], targets[:64]), batch_size=16, shuffle=True)
test = DataLoader(TensorDataset(rows[64:], targets[64:]), batch_size=16)
even = DataLoader(TensorDataset(rows[64:96], targets[64:96]), batch_size=16)
model = nn.Linear(5, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loss_of = nn.MSELoss()
for _ in range(3):
    for x, y in train:
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        error = 0.0
        for number, (x, y) in enumerate(test):
            error += loss_of(model(x), y).item() * len(x)
            print(f"{number + 1}/{len(test)}")
        print(error / len(test.dataset))
        print(sum(loss_of(model(x), y).item() for x, y in even) / len(even))
