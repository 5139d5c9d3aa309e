"""Conditional DCGAN for 16 x 16 icons (disc, square, cross)."""

import argparse

import numpy as np
import torch
import torch.nn as nn

KINDS, SIZE = 3, 16


def icons(n, seed):
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[:SIZE, :SIZE]
    images, labels = [], rng.integers(0, KINDS, n)
    for kind in labels:
        cy, cx, r = rng.uniform(6, 10), rng.uniform(6, 10), rng.uniform(3.5, 5.5)
        if kind == 0:
            shape = np.hypot(yy - cy, xx - cx) < r
        elif kind == 1:
            shape = (np.abs(yy - cy) < r) & (np.abs(xx - cx) < r)
        else:
            shape = ((np.abs(yy - cy) < 1.5) & (np.abs(xx - cx) < r)) | ((np.abs(xx - cx) < 1.5) & (np.abs(yy - cy) < r))
        images.append(np.where(shape, 230, 25) + rng.integers(-10, 11, (SIZE, SIZE)))
    return np.stack(images).astype(np.uint8), labels


def to_tensor(images):
    return torch.from_numpy(images).float()[:, None] / 127.5 - 1.0


def weights_init(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif isinstance(m, nn.BatchNorm2d):
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.zeros_(m.bias)


class Generator(nn.Module):
    def __init__(self, nz, ngf):
        super().__init__()
        self.embed = nn.Embedding(KINDS, nz)
        self.main = nn.Sequential(
            nn.ConvTranspose2d(2 * nz, 4 * ngf, 4, 1, 0, bias=False), nn.BatchNorm2d(4 * ngf), nn.ReLU(True),
            nn.ConvTranspose2d(4 * ngf, 2 * ngf, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * ngf), nn.ReLU(True),
            nn.ConvTranspose2d(2 * ngf, 1, 4, 2, 1), nn.Tanh(),
        )

    def forward(self, z, y):
        return self.main(torch.cat([z, self.embed(y)], 1)[..., None, None])


class Discriminator(nn.Module):
    def __init__(self, ndf):
        super().__init__()
        self.embed = nn.Embedding(KINDS, SIZE * SIZE)
        self.main = nn.Sequential(
            nn.Conv2d(2, ndf, 4, 2, 1), nn.LeakyReLU(0.2, True),
            nn.Conv2d(ndf, 2 * ndf, 4, 2, 1), nn.LeakyReLU(0.2, True),
            nn.Conv2d(2 * ndf, 1, 4, 1, 0),
        )

    def forward(self, x, y):
        return self.main(torch.cat([x, self.embed(y).view(-1, 1, SIZE, SIZE)], 1)).view(-1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--batchSize", type=int, default=64)
    p.add_argument("--nz", type=int, default=16)
    p.add_argument("--ngf", type=int, default=16)
    p.add_argument("--ndf", type=int, default=16)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--beta1", type=float, default=0.5)
    opt = p.parse_args()

    torch.manual_seed(4)
    images, labels = icons(1600, 1)
    dataset = torch.utils.data.TensorDataset(to_tensor(images), torch.from_numpy(labels))
    dataloader = torch.utils.data.DataLoader(dataset, batch_size=opt.batchSize, shuffle=True, drop_last=True)
    netG, netD = Generator(opt.nz, opt.ngf).apply(weights_init), Discriminator(opt.ndf).apply(weights_init)
    criterion = nn.BCEWithLogitsLoss()
    real_label, fake_label = 1.0, 0.0
    optimizerD = torch.optim.Adam(netD.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999))
    fixed_noise, fixed_kind = torch.randn(60, opt.nz), torch.arange(60) % KINDS

    for epoch in range(opt.epochs):
        for i, (real, kind) in enumerate(dataloader):
            # (1) update D
            netD.zero_grad()
            b = real.size(0)
            output = netD(real, kind)
            errD_real = criterion(output, torch.full((b,), real_label))
            errD_real.backward()
            D_x = output.sigmoid().mean().item()
            noise, fake_kind = torch.randn(b, opt.nz), torch.randint(0, KINDS, (b,))
            fake = netG(noise, fake_kind)
            output = netD(fake.detach(), fake_kind)
            errD_fake = criterion(output, torch.full((b,), fake_label))
            errD_fake.backward()
            optimizerD.step()
            # (2) update G
            netG.zero_grad()
            output = netD(fake, fake_kind)
            errG = criterion(output, torch.full((b,), real_label))
            errG.backward()
            D_G_z = output.sigmoid().mean().item()
            optimizerG.step()
        netG.eval()
        with torch.no_grad():
            sample = netG(fixed_noise, fixed_kind)
        netG.train()
        area = [(sample[fixed_kind == k] > 0).float().mean().item() for k in range(KINDS)]
        print(f"[{epoch}/{opt.epochs}] D {errD_real.item() + errD_fake.item():.3f}  G {errG.item():.3f}  D(x) {D_x:.2f}  D(G(z)) {D_G_z:.2f}  bright {[round(a, 2) for a in area]}")
    torch.save(netG.state_dict(), "netG.pth")


if __name__ == "__main__":
    main()
