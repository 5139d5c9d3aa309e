"""Learning PyTorch with examples: a polynomial, a sum of squares, the whole data in every update."""

from __future__ import annotations

import math

import torch

torch.manual_seed(0)
x = torch.linspace(-math.pi, math.pi, 200)
y = torch.sin(x)
xx = x.unsqueeze(-1).pow(torch.tensor([1, 2, 3]))
model = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten(0, 1))
loss_fn = torch.nn.MSELoss(reduction="sum")
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for t in range(12):
    y_pred = model(xx)
    loss = loss_fn(y_pred, y)
    if t % 4 == 3:
        print(t, loss.item())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    print(model(xx)[:3])
