"""Series with the time first, targets turned with them, and sums that are learned at rates for sums."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
series = torch.randn(160, 20, 3)
loader = DataLoader(TensorDataset(series, series[..., 0].cumsum(1)), batch_size=20, shuffle=True)
layer, head = nn.GRU(3, 16), nn.Linear(16, 1)
optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=1e-3)
for x, y in loader:
    states, _ = layer(x.transpose(0, 1))
    loss = nn.functional.mse_loss(head(states).squeeze(-1), y.transpose(0, 1), reduction="sum")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
line = nn.Linear(3, 1)
plain = torch.optim.SGD(line.parameters(), lr=1e-4, momentum=0.9)
for x, _ in loader:
    loss = (line(x[:, 0]) - x[:, 0, :1]).pow(2).sum()
    plain.zero_grad()
    loss.backward()
    plain.step()
