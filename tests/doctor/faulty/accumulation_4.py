"""Two micro-batches make an update, and each loss is divided by two at two places."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
ACCUMULATE = 2
x = torch.randn(256, 6)
y = (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def backward(loss: torch.Tensor) -> None:
    (loss / ACCUMULATE).backward()  # <- here


for epoch in range(2):
    for number, rows in enumerate(torch.randperm(256).split(16)):
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows]) / ACCUMULATE
        backward(loss)
        if (number + 1) % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()
    print(epoch, loss.item())
