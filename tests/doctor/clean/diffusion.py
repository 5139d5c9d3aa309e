"""Noise is predicted at random times; an average of the weights is kept beside."""

from __future__ import annotations

import copy

import torch
from torch import nn

torch.manual_seed(0)
network = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))
average = copy.deepcopy(network).requires_grad_(False)
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.0)
kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0)
for _ in range(20):
    clean, noise, times = torch.randn(32, 2) * 0.5, torch.randn(32, 2), torch.randint(0, 100, (32,))
    noisy = kept[times, None].sqrt() * clean + (1 - kept[times, None]).sqrt() * noise
    predicted = network(torch.cat([noisy, times[:, None] / 100], dim=1))
    loss = ((predicted - noise) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for mine, trained in zip(average.parameters(), network.parameters(), strict=True):
            mine.lerp_(trained, 0.01)
torch.save(average.state_dict(), "average.pt")
