"""A range test of the rate on a copy of the model; the training begins with the untouched weights, and is scored row by row."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def range_test(model, loader, low=1e-5, high=3.0, steps=30):
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=low)
    factor = (high / low) ** (1 / steps)
    curve = []
    while len(curve) < steps:
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.append((loss.item(), optimizer.param_groups[0]["lr"]))
            optimizer.param_groups[0]["lr"] *= factor
            if len(curve) == steps or loss.item() > 5 * curve[0][0]:
                return min(curve)[1] / 10
    return min(curve)[1] / 10


torch.manual_seed(8)
x = torch.randn(400, 12)
y = (x @ torch.randn(12, 4)).argmax(1)
train_loader = DataLoader(TensorDataset(x[:330], y[:330]), batch_size=32, shuffle=True)
test_loader = DataLoader(TensorDataset(x[330:], y[330:]), batch_size=32)
model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 4))
rate = range_test(model, train_loader)
optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
for epoch in range(3):
    model.train()
    for xb, yb in train_loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(xb), yb)
        loss.backward()
        optimizer.step()
    model.eval()
    correct, total = 0, 0
    with torch.no_grad():
        for xb, yb in test_loader:
            correct += (model(xb).argmax(1) == yb).sum().item()
            total += len(yb)
    print(epoch, correct / total)
