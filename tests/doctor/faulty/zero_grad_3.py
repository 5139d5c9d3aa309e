"""The discriminator is cleared by clearing the generator: its gradients pile up."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
generator, discriminator = nn.Linear(4, 8), nn.Linear(8, 1)
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
opt_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
bce = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
for _ in range(6):
    generator.zero_grad()
    fake = generator(torch.randn(16, 4))
    d_loss = bce(discriminator(torch.randn(16, 8)), ones) + bce(discriminator(fake.detach()), zeros)
    d_loss.backward()
    opt_d.step()  # <- here
    generator.zero_grad()
    bce(discriminator(fake), ones).backward()
    opt_g.step()
