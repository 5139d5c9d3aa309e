"""Validation switches to evaluation mode, and nothing switches back: from the second epoch dropout is off."""

from __future__ import annotations

import torch
from torch import nn


def fit(epochs, model, loss_func, opt, train_batches, valid_batches):
    model.train()
    for epoch in range(epochs):
        for xb, yb in train_batches():
            loss = loss_func(model(xb), yb)  # <- here
            loss.backward()
            opt.step()
            opt.zero_grad()
        model.eval()
        with torch.no_grad():
            losses = [(loss_func(model(xb), yb).item(), len(xb)) for xb, yb in valid_batches()]
        print(epoch, sum(a * n for a, n in losses) / sum(n for _, n in losses))


torch.manual_seed(1)
x = torch.randn(300, 10)
y = torch.stack([x[:, 0] * x[:, 1], x[:, 2].abs()], dim=1)
y = (y - y.mean(0)) / y.std(0)


def batches(low, high, size, shuffle):
    def each():
        order = torch.randperm(high - low) + low if shuffle else torch.arange(low, high)
        for rows in order.split(size):
            yield x[rows], y[rows]

    return each


model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 2))
fit(
    3,
    model,
    nn.functional.mse_loss,
    torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    batches(0, 240, 30, shuffle=True),
    batches(240, 300, 60, shuffle=False),
)
