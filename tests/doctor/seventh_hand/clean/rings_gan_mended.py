"""DCGAN on drawn rings."""
import argparse

import torch
import torch.nn as nn
import torch.optim as optim

parser = argparse.ArgumentParser()
parser.add_argument("--batchSize", type=int, default=32)
parser.add_argument("--nz", type=int, default=16)
parser.add_argument("--ngf", type=int, default=12)
parser.add_argument("--ndf", type=int, default=12)
parser.add_argument("--niter", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.0005)
parser.add_argument("--beta1", type=float, default=0.5)
opt = parser.parse_args()
torch.manual_seed(5)


def rings(count, size=16):
    grid = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")).float()
    centre = 5 + 6 * torch.rand(count, 2, 1, 1)
    radius = 3 + 2 * torch.rand(count, 1, 1)
    away = ((grid - centre) ** 2).sum(1).sqrt()
    return (2 * torch.exp(-((away - radius) ** 2)) - 1).unsqueeze(1)


def weights_init(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(m.weight, 0.0, 0.05)


class Generator(nn.Module):
    def __init__(self, nz, ngf):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False), nn.BatchNorm2d(ngf * 2), nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf), nn.ReLU(True),
            nn.ConvTranspose2d(ngf, 1, 4, 2, 1, bias=False), nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self, ndf):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, ndf, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True),
            nn.Conv2d(ndf * 2, 1, 4, 1, 0, bias=False),
        )

    def forward(self, x):
        return self.main(x).view(-1)


dataset = torch.utils.data.TensorDataset(rings(512))
dataloader = torch.utils.data.DataLoader(dataset, batch_size=opt.batchSize, shuffle=True, drop_last=True)
netG, netD = Generator(opt.nz, opt.ngf), Discriminator(opt.ndf)
netG.apply(weights_init)
netD.apply(weights_init)
criterion = nn.BCEWithLogitsLoss()
fixed_noise = torch.randn(16, opt.nz, 1, 1)
optimizerD = optim.Adam(netD.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999))

for epoch in range(opt.niter):
    for i, (real,) in enumerate(dataloader):
        # (1) Update D network: maximize log(D(x)) + log(1 - D(G(z)))
        netD.zero_grad()
        output = netD(real)
        errD_real = criterion(output, torch.ones(len(real)))
        errD_real.backward()
        D_x = output.sigmoid().mean().item()
        with torch.no_grad():
            fake = netG(torch.randn(len(real), opt.nz, 1, 1))
        errD_fake = criterion(netD(fake), torch.zeros(len(real)))
        errD_fake.backward()
        optimizerD.step()

        # (2) Update G network: maximize log(D(G(z)))
        netG.zero_grad()
        output = netD(netG(torch.randn(len(real), opt.nz, 1, 1)))
        errG = criterion(output, torch.ones(len(real)))
        errG.backward()
        optimizerG.step()
    print(f"[{epoch}/{opt.niter}] Loss_D: {(errD_real + errD_fake).item():.4f} Loss_G: {errG.item():.4f} D(x): {D_x:.4f}")

netG.eval()
with torch.no_grad():
    print("drawn between", netG(fixed_noise).min().item(), "and", netG(fixed_noise).max().item())
