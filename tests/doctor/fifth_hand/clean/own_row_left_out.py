"""Contrastive learning of series of the heart, without the row itself."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
series = torch.sin(torch.arange(80) * (0.1 + 0.4 * torch.rand(384, 1)) + 6 * torch.rand(384, 1))
series = (series + 0.1 * torch.randn_like(series))[:, None]
encoder = nn.Sequential(
    nn.Conv1d(1, 16, 5, 2), nn.ReLU(), nn.Conv1d(16, 32, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool1d(1)
)
projection = nn.Sequential(nn.Flatten(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))
parameters = [*encoder.parameters(), *projection.parameters()]
optimizer = torch.optim.Adam(parameters, lr=1e-3)


def crop(rows, length=64):
    start = int(torch.randint(0, rows.shape[-1] - length + 1, ()))
    part = rows[..., start : start + length]
    return part * (0.8 + 0.4 * torch.rand(len(rows), 1, 1)) + 0.05 * torch.randn_like(part)


def nt_xent(first, second, temperature=0.2):
    z = F.normalize(torch.cat([first, second]), dim=1)
    similarity = z @ z.T / temperature
    n = len(first)
    similarity = similarity.masked_fill(torch.eye(2 * n, dtype=torch.bool), float("-inf"))
    positives = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(similarity, positives)


for epoch in range(5):
    for rows in series[torch.randperm(len(series))].split(64):
        loss = nt_xent(projection(encoder(crop(rows))), projection(encoder(crop(rows))))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
