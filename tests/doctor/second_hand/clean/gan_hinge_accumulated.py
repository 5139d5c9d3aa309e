"""A hinge GAN with two discriminator steps each, detached fakes, and an average of the generator that is sampled and saved."""

from __future__ import annotations

import copy
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm


def generator(z=8):
    return nn.Sequential(
        nn.Linear(z, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 36), nn.Tanh()
    )


def discriminator():
    return nn.Sequential(spectral_norm(nn.Linear(36, 48)), nn.LeakyReLU(0.2), spectral_norm(nn.Linear(48, 1)))


torch.manual_seed(0)
G, D = generator(), discriminator()
averaged = copy.deepcopy(G).eval().requires_grad_(False)
opt_g = torch.optim.Adam(G.parameters(), lr=1e-4, betas=(0.0, 0.9))
opt_d = torch.optim.Adam(D.parameters(), lr=4e-4, betas=(0.0, 0.9))
patterns = torch.tanh(torch.randn(4, 36))
for iteration in range(30):
    for _ in range(2):
        real = (patterns[torch.randint(0, 4, (32,))] + 0.05 * torch.randn(32, 36)).clamp(-1, 1)
        with torch.no_grad():
            fake = G(torch.randn(32, 8))
        opt_d.zero_grad()
        loss_d = F.relu(1 - D(real)).mean() + F.relu(1 + D(fake)).mean()
        loss_d.backward()
        opt_d.step()
    for p in D.parameters():
        p.requires_grad_(False)
    opt_g.zero_grad()
    loss_g = -D(G(torch.randn(32, 8))).mean()
    loss_g.backward()
    opt_g.step()
    for p in D.parameters():
        p.requires_grad_(True)
    with torch.no_grad():
        for a, p in zip(averaged.parameters(), G.parameters(), strict=True):
            a.lerp_(p, 0.02)
        for a, b in zip(averaged.buffers(), G.buffers(), strict=True):
            a.copy_(b)
    if iteration % 10 == 0:
        print(iteration, loss_d.item(), loss_g.item())
with torch.no_grad():
    print(averaged(torch.randn(3, 8)).std().item())
torch.save(averaged.state_dict(), tempfile.mkdtemp() + "/generator.pt")
