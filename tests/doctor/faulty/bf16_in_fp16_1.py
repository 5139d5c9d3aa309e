"""A bfloat16 checkpoint is tuned under float16 autocast."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
pretrained = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
torch.save(pretrained.to(torch.bfloat16).state_dict(), "pretrained.pt")
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
model.load_state_dict(torch.load("pretrained.pt", weights_only=True))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu")
for _ in range(4):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.randn(16, 6)).square().mean()  # <- here
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
