"""Diffusion of points, sampled with averaged weights."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
points = torch.randn(512, 2) * torch.tensor([1.0, 0.2]) + 1
model = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 2))
shadow = [p.detach().clone() for p in model.parameters()]
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)


def sample(n):
    x = torch.randn(n, 2)
    with torch.no_grad():
        for level in torch.linspace(1, 0.1, 8):
            x = x - 0.1 * model(torch.cat([x, level.expand(n, 1)], 1))
    return x


for epoch in range(5):
    for x in points[torch.randperm(512)].split(64):
        level = torch.rand(len(x), 1)
        noise = torch.randn_like(x)
        predicted = model(torch.cat([x + level * noise, level], 1))
        loss = nn.functional.mse_loss(predicted, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for s, p in zip(shadow, model.parameters(), strict=False):
            s.lerp_(p.detach(), 0.02)
    for s, p in zip(shadow, model.parameters(), strict=False):
        p.data.copy_(s)  # <- here
    print(epoch, loss.item(), sample(64).mean(0).tolist())
