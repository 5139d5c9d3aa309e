"""Image classifier, functions."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(2)
y = torch.randint(0, 3, (360,))
x = torch.randn(360, 1, 6, 6) + 0.5 * y.view(-1, 1, 1, 1)
model = nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.ReLU(), nn.Linear(24, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = ReduceLROnPlateau(optimizer, factor=0.1, patience=1)
scores = ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=3)
for epoch in range(6):
    model.train()
    for rows, labels in DataLoader(TensorDataset(x[:300], y[:300]), 30, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows), labels).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        output = model(x[300:])
        loss = nn.functional.cross_entropy(output, y[300:]).item()
        accuracy = (output.argmax(1) == y[300:]).float().mean().item()
    scheduler.step(loss)
    scores.step(accuracy)
    print(epoch, loss, accuracy)
