"""GAN."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import spectral_norm

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
critic = nn.Sequential(spectral_norm(nn.Linear(2, 32)), nn.LeakyReLU(0.2), spectral_norm(nn.Linear(32, 1)))
g_opt = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
d_opt = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))


def real(n):
    angle = torch.rand(n) * 6.28
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(n, 2)


critic.eval()
with torch.no_grad():
    print(
        "gap before training",
        (critic(real(256)).mean() - critic(generator(torch.randn(256, 4))).mean()).item(),
    )  # <- here
critic.train()
for _step in range(60):
    fake = generator(torch.randn(64, 4)).detach()
    d_loss = torch.relu(1 - critic(real(64))).mean() + torch.relu(1 + critic(fake)).mean()
    d_opt.zero_grad()
    d_loss.backward()
    d_opt.step()
    g_loss = -critic(generator(torch.randn(64, 4))).mean()
    g_opt.zero_grad()
    g_loss.backward()
    g_opt.step()
print(d_loss.item(), g_loss.item())
