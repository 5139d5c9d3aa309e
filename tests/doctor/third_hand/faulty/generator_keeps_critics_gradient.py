"""GAN, functions."""

from __future__ import annotations

import torch
from torch import nn


def build():
    generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 16))
    discriminator = nn.Sequential(nn.Linear(16, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    return generator, discriminator


def main():
    torch.manual_seed(5)
    generator, discriminator = build()
    g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    mixing = torch.randn(4, 16)
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
    for _step in range(50):
        real = torch.randn(64, 4) @ mixing / 2
        g.zero_grad()  # <- here
        d.zero_grad()
        fake = generator(torch.randn(64, 8))
        d_loss = criterion(discriminator(real), ones) + criterion(discriminator(fake), zeros)  # <- here
        d_loss.backward(retain_graph=True)  # <- here
        d.step()
        g_loss = criterion(discriminator(fake.clone()), ones)
        g_loss.backward()  # <- here
        g.step()  # <- here
    print(f"d {d_loss.item():.3f} g {g_loss.item():.3f}")


main()
