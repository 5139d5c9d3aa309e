"""Edges to pictures: a conditional GAN with a patch discriminator (trainer class, after pix2pix)."""
import torch
import torch.nn as nn


def make_pairs(count, seed):
    gen = torch.Generator().manual_seed(seed)
    ys, xs = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    center = torch.rand(count, 2, generator=gen) - 0.5
    radius = 0.3 + 0.4 * torch.rand(count, 1, 1, generator=gen)
    dist = ((xs - center[:, :1, None]) ** 2 + (ys - center[:, 1:, None]) ** 2).sqrt()
    filled = torch.tanh(8 * (radius - dist))
    edges = torch.exp(-((dist - radius) ** 2) / 0.01) * 2 - 1
    return edges.unsqueeze(1), filled.unsqueeze(1)


def block(cin, cout, stride=1, norm=True):
    layers = [nn.Conv2d(cin, cout, 3, stride, 1, bias=not norm)]
    if norm:
        layers.append(nn.BatchNorm2d(cout))
    layers.append(nn.LeakyReLU(0.2))
    return nn.Sequential(*layers)


class Generator(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.down = nn.Sequential(block(1, width, norm=False), block(width, 2 * width, stride=2))
        self.middle = nn.Sequential(block(2 * width, 2 * width), nn.Dropout(0.2))
        self.up = nn.Sequential(nn.Upsample(scale_factor=2), block(2 * width, width))
        self.out = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, edges):
        return torch.tanh(self.out(self.up(self.middle(self.down(edges)))))


class PatchDiscriminator(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.net = nn.Sequential(
            block(2, width, stride=2, norm=False), block(width, 2 * width, stride=2), nn.Conv2d(2 * width, 1, 3, padding=1)
        )

    def forward(self, edges, picture):
        return self.net(torch.cat([edges, picture], dim=1))


class Pix2Pix:
    def __init__(self, lambda_l1=20.0, lr=2e-4):
        self.netG, self.netD = Generator(), PatchDiscriminator()
        self.criterionGAN = nn.BCEWithLogitsLoss()
        self.criterionL1 = nn.L1Loss()
        self.lambda_l1 = lambda_l1
        self.optimizer_G = torch.optim.Adam(self.netG.parameters(), lr=5 * lr, betas=(0.5, 0.999))
        self.optimizer_D = torch.optim.Adam(self.netD.parameters(), lr=lr, betas=(0.5, 0.999))

    def backward_D(self, edges, real, fake):
        pred_fake = self.netD(edges, fake.detach())
        pred_real = self.netD(edges, real)
        loss_fake = self.criterionGAN(pred_fake, torch.zeros_like(pred_fake))
        loss_real = self.criterionGAN(pred_real, torch.ones_like(pred_real))
        self.loss_D = 0.5 * (loss_fake + loss_real)
        self.loss_D.backward()

    def backward_G(self, edges, real, fake):
        pred_fake = self.netD(edges, fake)
        self.loss_G_GAN = self.criterionGAN(pred_fake, torch.ones_like(pred_fake))
        self.loss_G_L1 = self.criterionL1(fake, real) * self.lambda_l1
        self.loss_G = self.loss_G_GAN + self.loss_G_L1
        self.loss_G.backward()

    def optimize_parameters(self, edges, real):
        fake = self.netG(edges)
        self.optimizer_D.zero_grad()
        self.backward_D(edges, real, fake)
        self.optimizer_D.step()
        self.optimizer_G.zero_grad()
        self.backward_G(edges, real, fake)
        self.optimizer_G.step()

    @torch.no_grad()
    def sample(self, edges):
        self.netG.eval()
        pictures = self.netG(edges)
        return pictures


def main():
    torch.manual_seed(5)
    edges, pictures = make_pairs(320, seed=1)
    held_edges, held_pictures = make_pairs(48, seed=2)
    model = Pix2Pix()
    for epoch in range(3):
        for index in torch.randperm(len(edges)).split(32):
            model.optimize_parameters(edges[index], pictures[index])
        error = (model.sample(held_edges) - held_pictures).abs().mean()
        print(f"epoch {epoch} D {model.loss_D:.3f} G {model.loss_G_GAN:.3f} L1 {model.loss_G_L1:.3f} held-out {error:.3f}")


if __name__ == "__main__":
    main()
