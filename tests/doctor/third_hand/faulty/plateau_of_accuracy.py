"""Image classifier, functions."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset


def train_epoch(model, loader, optimizer):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    right = total = 0
    for x, y in loader:
        right += (model(x).argmax(1) == y).sum().item()
        total += len(y)
    return right / total


torch.manual_seed(2)
y = torch.randint(0, 3, (360,))
x = torch.randn(360, 1, 6, 6) + 0.5 * y.view(-1, 1, 1, 1)
train, valid = TensorDataset(x[:300], y[:300]), TensorDataset(x[300:], y[300:])
model = nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.ReLU(), nn.Linear(24, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = ReduceLROnPlateau(optimizer, factor=0.1, patience=1)  # <- here
for epoch in range(8):
    train_epoch(model, DataLoader(train, 30, shuffle=True), optimizer)
    score = accuracy(model, DataLoader(valid, 30))
    scheduler.step(score)  # <- here
    print(epoch, score, optimizer.param_groups[0]["lr"])
