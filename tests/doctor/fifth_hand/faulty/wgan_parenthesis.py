"""A Wasserstein GAN of spirals with clipped weights."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
turn = 6 * torch.rand(1024, 1)
spirals = torch.cat([turn.cos() * turn, turn.sin() * turn], 1) / 6
generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
discriminator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
optimizer_g = torch.optim.RMSprop(generator.parameters(), lr=5e-4)
optimizer_d = torch.optim.RMSprop(discriminator.parameters(), lr=5e-4)
batches = 0
for epoch in range(4):
    for real in spirals[torch.randperm(len(spirals))].split(64):
        fake = generator(torch.randn(len(real), 4)).detach()
        optimizer_d.zero_grad()
        loss_d = -torch.mean(discriminator(real) + torch.mean(discriminator(fake)))  # <- here
        loss_d.backward()
        optimizer_d.step()
        for parameter in discriminator.parameters():
            parameter.data.clamp_(-0.03, 0.03)
        if batches % 5 == 0:
            optimizer_g.zero_grad()
            loss_g = -torch.mean(discriminator(generator(torch.randn(len(real), 4))))
            loss_g.backward()
            optimizer_g.step()
        batches += 1
    print(epoch, loss_d.item(), loss_g.item())
