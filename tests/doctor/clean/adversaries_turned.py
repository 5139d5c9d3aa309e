"""A generator that learns to pass for real, with labels the other way round."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
of_generator = torch.optim.Adam(generator.parameters(), 1e-3)
of_discriminator = torch.optim.Adam(discriminator.parameters(), 1e-3)
real_label, fake_label = torch.zeros(32, 1), torch.ones(32, 1)
criterion = functional.binary_cross_entropy_with_logits
for _ in range(20):
    fake = generator(torch.randn(32, 4))
    real = torch.randn(32, 2) + 3
    loss = criterion(discriminator(real), real_label) + criterion(discriminator(fake.detach()), fake_label)
    of_discriminator.zero_grad()
    loss.backward()
    of_discriminator.step()
    output = discriminator(fake)
    generator_loss = criterion(output, real_label)
    of_generator.zero_grad()
    generator_loss.backward()
    of_generator.step()
