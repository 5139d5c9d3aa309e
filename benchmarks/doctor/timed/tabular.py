"""A small network on rows of numbers: updates of a millisecond or less, where every call that is watched counts."""

from __future__ import annotations

import torch
from clock import Clock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs = torch.randn(12_800, 64)
labels = (inputs[:, :8].sum(1) > 0).long()
loader = DataLoader(TensorDataset(inputs, labels), batch_size=64, shuffle=True)
model = nn.Sequential(
    nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
clock = Clock()
for _epoch in range(4):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        clock.tick()
clock.write()
