"""Both sides of a loss carry gradients on purpose: views, a cycle, a learned codebook; and a bootstrapped target is detached."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
encoder, decoder = nn.Linear(6, 4), nn.Linear(4, 6)
codes = nn.Parameter(torch.randn(5, 4))
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters(), codes], lr=1e-3)
for _ in range(12):
    rows = torch.randn(16, 6)
    one, other = encoder(rows), encoder(rows + 0.1 * torch.randn(16, 6))
    nearest = codes[torch.cdist(one, codes).argmin(1)]
    loss = nn.functional.mse_loss(one, other) + nn.functional.mse_loss(decoder(one), rows)
    loss = (
        loss
        + nn.functional.mse_loss(nearest, one.detach())
        + 0.25 * nn.functional.mse_loss(one, nearest.detach())
    )
    targets = (1 + 0.9 * other.sum(1)).detach()
    loss = loss + 0.1 * nn.functional.mse_loss(one.sum(1), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
