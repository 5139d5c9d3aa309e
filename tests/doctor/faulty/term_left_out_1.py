"""Two tasks on one trunk, of which the second one is added and not differentiated."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
trunk = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
colour, weight = nn.Linear(32, 4), nn.Linear(32, 1)
parts = [trunk, colour, weight]
optimizer = torch.optim.Adam([p for part in parts for p in part.parameters()], lr=3e-3)
fruit, colours = torch.randn(192, 16), torch.randint(0, 4, (192,))
weights = fruit[:, :1].abs()
for _epoch in range(3):
    running = 0.0
    for rows in torch.randperm(192).split(32):
        features = trunk(fruit[rows])
        loss = nn.functional.cross_entropy(colour(features), colours[rows])
        total = loss + 0.5 * nn.functional.mse_loss(weight(features), weights[rows])
        optimizer.zero_grad()
        loss.backward()  # <- here
        optimizer.step()
        running += total.item()
    print(running / 6)
