"""The shared trunk is in the optimizers of both heads."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
trunk, first, second = nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(8, 1)
opt_first = torch.optim.Adam([*trunk.parameters(), *first.parameters()], lr=1e-3)
opt_second = torch.optim.Adam([*trunk.parameters(), *second.parameters()], lr=1e-3)  # <- here
for _ in range(4):
    for head, optimizer in ((first, opt_first), (second, opt_second)):
        optimizer.zero_grad()
        nn.functional.mse_loss(head(trunk(torch.randn(16, 6))), torch.randn(16, 1)).backward()
        optimizer.step()
