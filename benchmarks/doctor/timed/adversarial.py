"""A GAN of two small networks: two optimizers, three backward passes an update, and modules that are called five times."""

from __future__ import annotations

import torch
from clock import Clock
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(32, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 256), nn.Tanh())
critic = nn.Sequential(nn.Linear(256, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
of_critic = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
loss_of = nn.BCEWithLogitsLoss()
real, fake = torch.ones(128, 1), torch.zeros(128, 1)
clock = Clock()
for _update in range(300):
    rows = torch.randn(128, 256).tanh()
    made = generator(torch.randn(128, 32))
    of_critic.zero_grad()
    loss_of(critic(rows), real).backward()
    loss_of(critic(made.detach()), fake).backward()
    of_critic.step()
    of_generator.zero_grad()
    loss_of(critic(made), real).backward()
    of_generator.step()
    clock.tick()
clock.write()
