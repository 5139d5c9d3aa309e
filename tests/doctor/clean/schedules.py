"""A warm-up followed by a cosine, per update; a plateau schedule, per epoch."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, ReduceLROnPlateau, SequentialLR

torch.manual_seed(0)
first, second = nn.Linear(4, 1), nn.Linear(4, 1)
inputs, targets = torch.randn(32, 4), torch.randn(32, 1)
held_out = torch.randn(16, 4), torch.randn(16, 1)
optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
warmup = LinearLR(optimizer, start_factor=0.1, total_iters=3)
scheduler = SequentialLR(optimizer, [warmup, CosineAnnealingLR(optimizer, T_max=9)], milestones=[3])
for _ in range(12):
    optimizer.zero_grad()
    nn.functional.mse_loss(first(inputs), targets).backward()
    optimizer.step()
    scheduler.step()
other = torch.optim.Adam(second.parameters())
plateau = ReduceLROnPlateau(other, "min")
for _ in range(6):
    other.zero_grad()
    nn.functional.mse_loss(second(inputs), targets).backward()
    other.step()
    with torch.no_grad():
        val_loss = nn.functional.mse_loss(second(held_out[0]), held_out[1])
    plateau.step(val_loss)
