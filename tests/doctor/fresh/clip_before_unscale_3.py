"""The norm is computed and limited by hand, before the scaler has unscaled."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(1)
net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for _step in range(6):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(net(torch.randn(12, 8)), torch.randint(0, 2, (12,)))
    opt.zero_grad()
    scaler.scale(loss).backward()
    total = torch.sqrt(sum(p.grad.pow(2).sum() for p in net.parameters()))
    if total > 1.0:
        for p in net.parameters():
            p.grad.mul_(1.0 / total)  # <- here
    scaler.step(opt)
    scaler.update()
