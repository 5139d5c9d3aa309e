"""The losses of all updates are kept in a list, to be plotted."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)


def train(model, updates):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    history = []
    for _ in range(updates):
        rows = torch.randn(16, 6)
        loss = nn.functional.mse_loss(model(rows), rows[:, :2])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss)  # <- here
    return history


print(float(train(nn.Linear(6, 2), 30)[-1]))
