"""LBFGS with a closure, as the documentation of torch.optim shows it; then Adam goes on with the same weights."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
input, target = torch.randn(32, 3), torch.randn(32, 1)
loss_fn = nn.MSELoss()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5)
for _ in range(4):

    def closure():
        optimizer.zero_grad()
        output = model(input)
        loss = loss_fn(output, target)
        loss.backward()
        return loss

    optimizer.step(closure)
adam = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(4):
    adam.zero_grad()
    loss_fn(model(input), target).backward()
    adam.step()
