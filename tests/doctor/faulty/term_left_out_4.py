"""A VAE whose divergence is computed and logged, and never learned."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
g = torch.Generator().manual_seed(1)
data = (torch.rand(512, 8, generator=g) @ torch.rand(8, 32, generator=g)).sigmoid()


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.mu, self.lv = nn.Linear(32, 64), nn.Linear(64, 4), nn.Linear(64, 4)
        self.dec = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, x):
        h = torch.relu(self.enc(x))
        mu, lv = self.mu(h), self.lv(h)
        return self.dec(mu + torch.randn_like(mu) * (0.5 * lv).exp()), mu, lv


vae = VAE()
opt = torch.optim.Adam(vae.parameters(), lr=2e-3)
for epoch in range(6):
    for i in torch.randperm(512).split(32):
        x = data[i]
        out, mu, lv = vae(x)
        recon = nn.functional.mse_loss(out, x, reduction="sum") / len(x)
        kld = -0.5 * (1 + lv - mu.pow(2) - lv.exp()).sum(1).mean()
        loss = recon
        opt.zero_grad()
        loss.backward()  # <- here
        opt.step()
        log = (recon.item(), kld.item())
    print(epoch, recon.item(), kld.item())
