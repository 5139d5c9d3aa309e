"""The gradient is clipped with the loss scale in it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

torch.manual_seed(0)
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for _ in range(4):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(torch.randn(16, 6)), torch.randint(0, 3, (16,)))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    clip_grad_norm_(model.parameters(), 1.0)  # <- here
    scaler.step(optimizer)
    scaler.update()
