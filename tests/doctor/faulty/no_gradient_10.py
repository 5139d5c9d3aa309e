"""A transformer's layer tuned in bfloat16 at a rate whose steps are less than its weights can tell apart."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(11)
layer = nn.Sequential(nn.Linear(16, 48), nn.SiLU(), nn.Linear(48, 4)).bfloat16()
optimizer = torch.optim.Adam(layer.parameters(), lr=1e-5)  # <- here
for _ in range(20):
    rows = torch.randn(32, 16)
    loss = nn.functional.cross_entropy(layer(rows.bfloat16()).float(), rows[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
