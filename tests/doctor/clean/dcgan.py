"""The DCGAN tutorial's loop: two optimizers, two backward passes for the discriminator, fixed noise."""

from __future__ import annotations

import torch
from torch import nn, optim

torch.manual_seed(0)
nz = 8
netG = nn.Sequential(
    nn.ConvTranspose2d(nz, 16, 4, 1, 0, bias=False),
    nn.BatchNorm2d(16),
    nn.ReLU(True),
    nn.ConvTranspose2d(16, 1, 4, 2, 1, bias=False),
    nn.Tanh(),
)
netD = nn.Sequential(
    nn.Conv2d(1, 16, 4, 2, 1, bias=False),
    nn.BatchNorm2d(16),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(16, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
)
criterion = nn.BCELoss()
fixed_noise = torch.randn(16, nz, 1, 1)
real_label, fake_label = 1.0, 0.0
optimizerD = optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))
img_list = []
for i in range(8):
    netD.zero_grad()
    real = torch.rand(16, 1, 8, 8)
    label = torch.full((16,), real_label)
    output = netD(real).view(-1)
    errD_real = criterion(output, label)
    errD_real.backward()
    fake = netG(torch.randn(16, nz, 1, 1))
    label.fill_(fake_label)
    output = netD(fake.detach()).view(-1)
    errD_fake = criterion(output, label)
    errD_fake.backward()
    optimizerD.step()
    netG.zero_grad()
    label.fill_(real_label)
    output = netD(fake).view(-1)
    errG = criterion(output, label)
    errG.backward()
    optimizerG.step()
    if i % 4 == 3:
        with torch.no_grad():
            fake = netG(fixed_noise).detach().cpu()
        img_list.append(fake)
