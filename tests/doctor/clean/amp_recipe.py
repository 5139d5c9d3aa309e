"""The AMP recipe: autocast, GradScaler, unscale before clipping."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
opt = torch.optim.SGD(net.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
loss_fn = nn.MSELoss()
data = [torch.randn(8, 16) for _ in range(6)]
targets = [torch.randn(8, 4) for _ in range(6)]
for _epoch in range(2):
    for input, target in zip(data, targets, strict=True):
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            output = net(input)
            loss = loss_fn(output, target)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=0.1)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
