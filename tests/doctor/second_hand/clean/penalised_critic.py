"""A critic with a gradient penalty on real rows (R1), every fourth update, and a frozen critic in the generator's turn."""

from __future__ import annotations

import torch
from torch import autograd, nn
from torch.nn.functional import softplus


def r1_penalty(critic, real):
    real = real.detach().requires_grad_(True)
    (gradient,) = autograd.grad(critic(real).sum(), real, create_graph=True)
    return gradient.pow(2).sum(1).mean()


class Config:
    rows, noise, updates, gamma, every = 48, 6, 24, 1.0, 4


def main(cfg=Config):
    torch.manual_seed(1)
    make = nn.Sequential(nn.Linear(cfg.noise, 32), nn.SiLU(), nn.Linear(32, 2))
    critic = nn.Sequential(nn.Linear(2, 32), nn.SiLU(), nn.Linear(32, 1))
    opt_make = torch.optim.Adam(make.parameters(), lr=1e-3, betas=(0.0, 0.99))
    opt_critic = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.99))
    for update in range(cfg.updates):
        angle = 6.283 * torch.rand(cfg.rows)
        real = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(cfg.rows, 2)
        fake = make(torch.randn(cfg.rows, cfg.noise))
        loss = softplus(critic(fake.detach())).mean() + softplus(-critic(real)).mean()
        if update % cfg.every == 0:
            loss = loss + cfg.every * cfg.gamma / 2 * r1_penalty(critic, real)
        opt_critic.zero_grad(set_to_none=True)
        loss.backward()
        opt_critic.step()

        critic.requires_grad_(False)
        opt_make.zero_grad(set_to_none=True)
        softplus(-critic(fake)).mean().backward()
        opt_make.step()
        critic.requires_grad_(True)
    print("critic", loss.item())


main()
