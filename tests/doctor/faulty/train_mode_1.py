"""After the first evaluation the model stays in evaluation mode."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs, labels = torch.randn(80, 6), torch.arange(80) % 2
train = DataLoader(TensorDataset(inputs[:64], labels[:64]), batch_size=16, shuffle=True)
valid = DataLoader(TensorDataset(inputs[64:], labels[64:]), batch_size=16)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
for _epoch in range(3):
    for x, y in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()  # <- here
    with torch.no_grad():
        for x, y in valid:
            print(nn.functional.cross_entropy(model(x), y).item())
