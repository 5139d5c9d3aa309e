"""WGAN with a gradient penalty: five critic steps for one of the generator."""

from __future__ import annotations

import torch
from torch import autograd, nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.5, 0.9))
optimizer_c = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.5, 0.9))
for iteration in range(20):
    real = torch.randn(16, 8)
    optimizer_c.zero_grad()
    fake = generator(torch.randn(16, 4)).detach()
    mixed = (real + torch.rand(16, 1) * (fake - real)).requires_grad_(True)
    (gradient,) = autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    penalty = ((gradient.norm(2, dim=1) - 1) ** 2).mean()
    (critic(fake).mean() - critic(real).mean() + 10 * penalty).backward()
    optimizer_c.step()
    if iteration % 5 == 4:
        optimizer_g.zero_grad()
        (-critic(generator(torch.randn(16, 4))).mean()).backward()
        optimizer_g.step()
