"""Distillation."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(320, 20)
teacher = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 6)).eval()
student = nn.Linear(20, 6)
loader = DataLoader(TensorDataset(x), batch_size=40, shuffle=True)
kl = nn.KLDivLoss(reduction="batchmean")
optimizer = torch.optim.Adam(student.parameters(), lr=5e-3)
temperature = 2.0
for epoch in range(3):
    for (rows,) in loader:
        with torch.no_grad():
            soft = (teacher(rows) / temperature).softmax(-1)
        guess = (student(rows) / temperature).softmax(-1)  # <- here
        loss = kl(guess, soft) * temperature**2  # <- here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
