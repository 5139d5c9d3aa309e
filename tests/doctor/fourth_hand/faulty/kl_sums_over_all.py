"""Point process with a latent variable and a mask of events."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
times = torch.rand(128, 15, 1).cumsum(1)
mask = (torch.arange(15)[None] < torch.randint(5, 16, (128, 1))).float()


class Latent(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 8))
        self.decode = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x):
        mean, log_var = self.encode(x).chunk(2, -1)
        z = mean + (0.5 * log_var).exp() * torch.randn_like(mean)
        return self.decode(z), mean, log_var


model = Latent()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _step in range(40):
    rows = torch.randperm(128)[:32]
    x, m = times[rows], mask[rows]
    again, mean, log_var = model(x)
    error = ((again - x) ** 2).squeeze(-1) * m
    kl = (-0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp())) * m  # <- here
    loss = (error + kl).sum() / m.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
