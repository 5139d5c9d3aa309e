"""Diffusion of points, sampled with averaged weights that are taken out again."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
points = torch.randn(512, 2) * torch.tensor([1.0, 0.2]) + 1
model = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 2))
shadow = [p.detach().clone() for p in model.parameters()]
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for epoch in range(4):
    for x in points[torch.randperm(512)].split(64):
        level, noise = torch.rand(len(x), 1), torch.randn_like(x)
        loss = nn.functional.mse_loss(model(torch.cat([x + level * noise, level], 1)), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for s, p in zip(shadow, model.parameters(), strict=False):
            s.lerp_(p.detach(), 0.1)
    raw = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        for s, p in zip(shadow, model.parameters(), strict=False):
            p.copy_(s)
        x = torch.randn(64, 2)
        for level in torch.linspace(1, 0.1, 8):
            x = x - 0.1 * model(torch.cat([x, level.expand(64, 1)], 1))
        for r, p in zip(raw, model.parameters(), strict=False):
            p.copy_(r)
    print(epoch, loss.item(), x.mean(0).tolist())
