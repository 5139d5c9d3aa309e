"""Three quantiles of one target, a survival loss by hand, and a flow of one's own."""

from __future__ import annotations

import math

import torch
from torch import nn

torch.manual_seed(0)
quantiles = torch.tensor([0.1, 0.5, 0.9])
model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 3))
hazard = nn.Linear(5, 1)
shift, scale = nn.Parameter(torch.zeros(5)), nn.Parameter(torch.zeros(5))
optimizer = torch.optim.Adam([*model.parameters(), *hazard.parameters(), shift, scale], lr=1e-2)
for _ in range(12):
    x = torch.randn(40, 5)
    y = x[:, :1] + 0.3 * torch.randn(40, 1)
    off = y - model(x)
    pinball = torch.maximum(quantiles * off, (quantiles - 1) * off).mean()
    risk = hazard(x).squeeze(1)
    order = torch.argsort(y.squeeze(1), descending=True)
    cox = -(risk[order] - torch.logcumsumexp(risk[order], 0)).mean()
    flow = (0.5 * ((x - shift) * torch.exp(scale)) ** 2 - scale + 0.5 * math.log(2 * math.pi)).sum(1).mean()
    optimizer.zero_grad()
    (pinball + cox + flow).backward()
    optimizer.step()
