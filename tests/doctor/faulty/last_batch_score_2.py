"""A denoiser with a plateau that waits for the error of the last batch."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
clean = torch.sin(torch.rand(200, 1) * 6 + torch.arange(24) / 3)
model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 24))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
criterion = nn.SmoothL1Loss()
for _epoch in range(4):
    for x in clean[torch.randperm(160)].split(32):
        optimizer.zero_grad()
        criterion(model(x + 0.1 * torch.randn_like(x)), x).backward()
        optimizer.step()
    with torch.inference_mode():
        for x in clean[160:].split(10):
            error = criterion(
                model(x + 0.1 * torch.randn_like(x)),
                x,
            )
    plateau.step(error)  # <- here
