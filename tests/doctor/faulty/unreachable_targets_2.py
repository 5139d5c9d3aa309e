"""An autoencoder that ends with a ReLU, of rows with a mean of zero."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
layers = [nn.Linear(10, 4), nn.ReLU(), nn.Linear(4, 10), nn.ReLU()]
autoencoder = nn.Sequential(*layers)
optimizer = torch.optim.Adam(autoencoder.parameters(), lr=1e-2)
criterion = nn.L1Loss()
for _ in range(8):
    rows = torch.randn(32, 10)
    loss = criterion(autoencoder(rows), rows)  # <- here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
