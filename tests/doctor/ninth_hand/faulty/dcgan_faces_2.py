"""DCGAN in a class, on faces made of ellipses."""
import torch
from torch import nn


def faces(n, seed):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    w = 0.4 + 0.4 * torch.rand(n, 1, 1, generator=g)
    h = 0.5 + 0.4 * torch.rand(n, 1, 1, generator=g)
    head = ((xx / w) ** 2 + (yy / h) ** 2 < 1).float()
    eyes = (((xx.abs() - w / 2) ** 2 + (yy + 0.2) ** 2) < 0.02).float()
    return (head - eyes).clamp(0, 1).unsqueeze(1) * 2 - 1


def weights_init(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif isinstance(m, nn.BatchNorm2d):
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.zeros_(m.bias)


class Generator(nn.Sequential):
    def __init__(self, nz=32, f=16):
        super().__init__(
            nn.ConvTranspose2d(nz, f * 2, 4, 1, 0, bias=False), nn.BatchNorm2d(f * 2), nn.ReLU(True),
            nn.ConvTranspose2d(f * 2, f, 4, 2, 1, bias=False), nn.BatchNorm2d(f), nn.ReLU(True),
            nn.ConvTranspose2d(f, 1, 4, 2, 1, bias=False), nn.Tanh(),
        )


class Discriminator(nn.Sequential):
    def __init__(self, f=16):
        super().__init__(
            nn.Conv2d(1, f, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(f, f * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(f * 2), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(f * 2, 1, 4, 1, 0, bias=False), nn.Flatten(0),
        )


class DCGAN:
    def __init__(self, nz=32, lr=2e-4, beta1=0.5):
        self.nz = nz
        self.netG = Generator(nz).apply(weights_init)
        self.netD = Discriminator().apply(weights_init)
        self.criterion = nn.BCEWithLogitsLoss()
        self.optimizerD = torch.optim.Adam(self.netD.parameters(), lr=lr, betas=(beta1, 0.999))
        self.optimizerG = torch.optim.Adam(self.netD.parameters(), lr=lr, betas=(beta1, 0.999))  # <- here

    def step(self, real):
        b = real.size(0)
        real_label = torch.ones(b)
        fake_label = torch.zeros(b)

        self.netD.zero_grad()
        loss_real = self.criterion(self.netD(real), real_label)
        fake = self.netG(torch.randn(b, self.nz, 1, 1))
        loss_fake = self.criterion(self.netD(fake.detach()), fake_label)
        loss_d = loss_real + loss_fake
        loss_d.backward()
        self.optimizerD.step()

        self.netG.zero_grad()
        output = self.netD(fake)
        loss_g = self.criterion(output, real_label)
        loss_g.backward()
        self.optimizerG.step()  # <- here
        return loss_d.item(), loss_g.item()

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            for i, (real,) in enumerate(loader):
                d, g = self.step(real)
            print(f"[{epoch + 1}/{epochs}] Loss_D: {d:.4f} Loss_G: {g:.4f}")


if __name__ == "__main__":
    torch.manual_seed(999)
    data = torch.utils.data.TensorDataset(faces(1024, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
    DCGAN().fit(loader, 5)
