"""Regressions whose shapes and last activations fit: columns, positive targets, pixels, differences of all pairs."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
counts = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1), nn.ReLU())
pixels = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 6), nn.Tanh())
ranks = nn.Linear(6, 1)
optimizer = torch.optim.Adam([*counts.parameters(), *pixels.parameters(), *ranks.parameters()], lr=1e-2)
for _ in range(10):
    inputs = torch.randn(24, 6)
    positive = nn.functional.mse_loss(counts(inputs), inputs[:, :1].abs() + 0.5)
    restored = nn.functional.mse_loss(pixels(inputs), inputs.tanh())
    scores = ranks(inputs)
    pairs = scores - scores.squeeze(1)  # each with each, of one model
    order = nn.functional.softplus(-pairs * (inputs[:, :1] - inputs[:, 0]).sign()).mean()
    weights = (torch.arange(24)[:, None] - torch.arange(24)).abs()  # distances of places
    centre = ((ranks(inputs) - inputs.mean()) ** 2 * weights.float().mean() * 1e-3).mean()
    optimizer.zero_grad()
    (positive + restored + order + centre).backward()
    optimizer.step()
