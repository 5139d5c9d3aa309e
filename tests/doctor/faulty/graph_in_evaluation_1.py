"""A classifier is put into evaluation mode and scored in large batches, with the graph of each."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)


def batch(rows):
    x = torch.randn(rows, 12)
    return x, (x[:, 0] + x[:, 1] > 0).long()


def accuracy(model, batches):
    model.eval()
    right = 0
    for _ in range(batches):
        x, y = batch(400)
        right += (model(x).argmax(1) == y).sum().item()  # <- here
    return right / (400 * batches)


model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(3):
    model.train()
    for _ in range(10):
        x, y = batch(50)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, f"{accuracy(model, 4):.3f}")
