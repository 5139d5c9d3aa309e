"""A variational autoencoder of the logarithm of the deviation."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)


class Coder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 12))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, logdev = self.encoder(x).chunk(2, dim=1)
        deviation = logdev.exp()
        return self.decoder(mean + deviation * torch.randn_like(mean)), mean, logdev


coder = Coder()
optimizer = torch.optim.Adam(coder.parameters(), 1e-3)
for _ in range(20):
    x = torch.randn(32, 12)
    made, mean, logdev = coder(x)
    divergence = -0.5 * (1 + 2 * logdev - mean.pow(2) - (2 * logdev).exp()).sum(1).mean()
    loss = functional.mse_loss(made, x, reduction="sum") / len(x) + divergence
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
