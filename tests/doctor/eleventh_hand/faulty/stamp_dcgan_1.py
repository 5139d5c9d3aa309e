"""DCGAN on drawn stamps: a flat script in the manner of the PyTorch tutorial."""
import random

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

manualSeed = 999
random.seed(manualSeed)
torch.manual_seed(manualSeed)

batch_size = 32
image_size = 16
nz = 16
ngf = 16
ndf = 16
num_epochs = 5
lr = 0.0006
beta1 = 0.5

# Stamps: a frame with a bright disc somewhere inside, in [-1, 1]
yy, xx = torch.meshgrid(torch.arange(image_size), torch.arange(image_size), indexing="ij")
centers = torch.randint(5, 11, (960, 2, 1, 1))
radius = torch.randint(2, 4, (960, 1, 1))
disc = ((yy - centers[:, 0]) ** 2 + (xx - centers[:, 1]) ** 2 <= radius**2).float()
frame = ((yy < 1) | (yy > 14) | (xx < 1) | (xx > 14)).float()
stamps = (torch.maximum(disc, 0.6 * frame) * 2 - 1).unsqueeze(1)
dataloader = DataLoader(TensorDataset(stamps), batch_size=batch_size, shuffle=True)


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        nn.init.normal_(m.weight.data, 0.0, 0.05)
    elif classname.find("BatchNorm") != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 4, 4, 1, 0, bias=False), nn.BatchNorm2d(ngf * 4), nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf * 2), nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, 1, 4, 2, 1), nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, ndf, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(ndf * 2), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, 1, 4, 1, 0), nn.Sigmoid(),
        )

    def forward(self, picture):
        return self.main(picture)


netG, netD = Generator(), Discriminator()
netG.apply(weights_init)
netD.apply(weights_init)
criterion = nn.BCELoss()
fixed_noise = torch.randn(64, nz, 1, 1)
real_label, fake_label = 1.0, 0.0
optimizerD = optim.Adam(netD.parameters(), lr=lr, betas=(beta1, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=lr, betas=(beta1, 0.999))

G_losses, D_losses = [], []
print("Starting Training Loop...")
for epoch in range(num_epochs):
    for i, (real,) in enumerate(dataloader):
        # (1) Update D network: maximize log(D(x)) + log(1 - D(G(z)))
        label = torch.full((real.size(0),), real_label)
        output = netD(real).view(-1)
        errD_real = criterion(output, label)
        errD_real.backward()
        D_x = output.mean().item()
        noise = torch.randn(real.size(0), nz, 1, 1)
        fake = netG(noise)
        label.fill_(fake_label)
        output = netD(fake.detach()).view(-1)
        errD_fake = criterion(output, label)
        errD_fake.backward()
        D_G_z1 = output.mean().item()
        errD = errD_real + errD_fake
        optimizerD.step()

        # (2) Update G network: maximize log(D(G(z)))
        netG.zero_grad()
        label.fill_(real_label)
        output = netD(fake).view(-1)
        errG = criterion(output, label)
        errG.backward()
        D_G_z2 = output.mean().item()
        optimizerG.step()

        G_losses.append(errG.item())
        D_losses.append(errD.item())
    with torch.no_grad():
        pictures = netG(fixed_noise)
    print(f"[{epoch}/{num_epochs}] D {errD.item():.3f} G {errG.item():.3f} D(x) {D_x:.3f} D(G(z)) {D_G_z1:.3f}/{D_G_z2:.3f}", end=" ")
    print(f"mean picture off by {(pictures.mean(0) - stamps.mean(0)).abs().mean().item():.3f}")
