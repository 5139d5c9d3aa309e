"""A regression by plain gradient descent of the sum of all errors, at a rate for their mean."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(256, 6)
outputs = inputs[:, :1] - inputs[:, 1:2]
model = nn.Linear(6, 1)
criterion = nn.L1Loss(reduction="sum")  # <- here
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
for epoch in range(3):
    for rows in torch.randperm(256).split(64):
        loss = criterion(model(inputs[rows]), outputs[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
