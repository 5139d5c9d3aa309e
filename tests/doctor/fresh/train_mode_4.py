"""A binary classifier is scored with dropout on: by hand, by a threshold, from plain tensors."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(1)
x, y = torch.randn(120, 5), torch.randint(0, 2, (120, 1)).float()
train_x, train_y, test_x, test_y = x[:90], y[:90], x[90:], y[90:]
net = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Dropout(0.5), nn.Linear(24, 1))
opt = torch.optim.Adam(net.parameters(), lr=0.01)
for _epoch in range(4):
    for start in range(0, 90, 30):
        loss = nn.BCEWithLogitsLoss()(net(train_x[start : start + 30]), train_y[start : start + 30])
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        predicted = (torch.sigmoid(net(test_x)) > 0.5).float()  # <- here
        print("accuracy", (predicted == test_y).float().mean().item())
