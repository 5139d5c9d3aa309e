"""A GAN on points of the plane whose generator's optimizer holds the discriminator's weights."""

from __future__ import annotations

import math

import torch
from torch import nn


def real_points(n):
    angle = torch.rand(n) * math.pi
    upper = torch.rand(n) < 0.5
    x = torch.where(upper, torch.cos(angle), 1 - torch.cos(angle)) - 0.5
    y = torch.where(upper, torch.sin(angle), 0.5 - torch.sin(angle)) - 0.25
    return torch.stack([x, y], dim=1) + 0.05 * torch.randn(n, 2)


class GAN:
    def __init__(self, noise_dim=4, hidden=32):
        self.noise_dim = noise_dim
        self.generator = nn.Sequential(nn.Linear(noise_dim, hidden), nn.ReLU(), nn.Linear(hidden, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, 1))
        self.d_opt = torch.optim.Adam(self.discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
        self.g_opt = torch.optim.Adam(  # <- here
            self.discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999)
        )
        self.bce = nn.BCEWithLogitsLoss()

    def train_discriminator(self, real):
        fake = self.generator(torch.randn(len(real), self.noise_dim)).detach()
        loss = self.bce(self.discriminator(real), torch.ones(len(real), 1)) + self.bce(
            self.discriminator(fake), torch.zeros(len(real), 1)
        )
        self.d_opt.zero_grad()
        loss.backward()
        self.d_opt.step()
        return loss.item()

    def train_generator(self, batch):
        fake = self.generator(torch.randn(batch, self.noise_dim))
        loss = self.bce(self.discriminator(fake), torch.ones(batch, 1))
        self.g_opt.zero_grad()
        loss.backward()
        self.g_opt.step()  # <- here
        return loss.item()


torch.manual_seed(0)
gan = GAN()
for step in range(40):
    d_loss = gan.train_discriminator(real_points(64))
    g_loss = gan.train_generator(64)
    if step % 20 == 0:
        print(f"{step:4d} d {d_loss:.3f} g {g_loss:.3f}")
