"""Losses that rise and are no sign of a wrong rate: a game of growing returns, a critic without bounds, a queue that fills."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
value = nn.Linear(4, 1)
optimizer = torch.optim.Adam(value.parameters(), lr=1e-3)
for game in range(40):  # returns grow as the player learns
    states = torch.randn(16, 4)
    returns = states[:, :1] * 1.2**game
    loss = nn.functional.mse_loss(value(states), returns)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

encoder = nn.Linear(8, 8)
queue = torch.zeros(0, 8)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
for _ in range(30):  # the more negatives, the larger the loss
    rows = torch.randn(16, 8)
    queries = nn.functional.normalize(encoder(rows), dim=1)
    keys = nn.functional.normalize(rows, dim=1)
    scores = queries @ torch.cat([keys, queue]).T / 0.1
    loss = nn.functional.cross_entropy(scores, torch.arange(16))
    queue = torch.cat([queue, keys])[-256:]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
