"""Tabular classifier, schedule."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
BASE = 1e-3
STEPS = 3 * 10
x = torch.randn(320, 9)
y = (x[:, :3].sum(1) > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=BASE)
scheduler = LambdaLR(optimizer, lambda step: BASE * (1 - step / STEPS))  # <- here
for epoch in range(3):
    for rows, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(rows), labels)
        loss.backward()
        optimizer.step()  # <- here
        scheduler.step()
    print(epoch, loss.item(), scheduler.get_last_lr())
