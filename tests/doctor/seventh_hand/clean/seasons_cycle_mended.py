"""Unpaired translation between two seasons of one-dimensional temperature curves (two generators, two discriminators)."""
import itertools
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class ImagePool:
    """A buffer of earlier fakes."""

    def __init__(self, size):
        self.size, self.kept = size, []

    def query(self, fakes):
        out = []
        for fake in fakes.detach():
            if len(self.kept) < self.size:
                self.kept.append(fake)
                out.append(fake)
            elif random.random() > 0.5:
                place = random.randrange(self.size)
                out.append(self.kept[place])
                self.kept[place] = fake
            else:
                out.append(fake)
        return torch.stack(out)


def net_g(width=16):
    return nn.Sequential(
        nn.Conv1d(1, width, 5, padding=2), nn.InstanceNorm1d(width), nn.ReLU(),
        nn.Conv1d(width, width, 5, padding=2), nn.InstanceNorm1d(width), nn.ReLU(),
        nn.Conv1d(width, 1, 5, padding=2),
    )


def net_d(width=16):
    return nn.Sequential(
        nn.Conv1d(1, width, 5, stride=2, padding=2), nn.LeakyReLU(0.2),
        nn.Conv1d(width, 2 * width, 5, stride=2, padding=2), nn.LeakyReLU(0.2),
        nn.Conv1d(2 * width, 1, 3, padding=1),
    )


class CycleModel:
    def __init__(self, lr=5e-4, lambda_cycle=10.0):
        self.netG_A, self.netG_B = net_g(), net_g()
        self.netD_A, self.netD_B = net_d(), net_d()
        self.pool_a, self.pool_b = ImagePool(40), ImagePool(40)
        self.lambda_cycle = lambda_cycle
        self.optimizer_G = torch.optim.Adam(itertools.chain(self.netG_A.parameters(), self.netG_B.parameters()), lr=lr, betas=(0.5, 0.999))
        self.optimizer_D = torch.optim.Adam(itertools.chain(self.netD_A.parameters(), self.netD_B.parameters()), lr=lr, betas=(0.5, 0.999))

    @staticmethod
    def gan_loss(prediction, real):
        return F.mse_loss(prediction, torch.full_like(prediction, float(real)))

    def set_requires_grad(self, nets, wanted):
        for net in nets:
            for parameter in net.parameters():
                parameter.requires_grad = wanted

    def optimize_parameters(self, real_a, real_b):
        fake_b, fake_a = self.netG_A(real_a), self.netG_B(real_b)
        rec_a, rec_b = self.netG_B(fake_b), self.netG_A(fake_a)

        self.set_requires_grad([self.netD_A, self.netD_B], False)
        self.optimizer_G.zero_grad()
        loss_g = self.gan_loss(self.netD_A(fake_b), True) + self.gan_loss(self.netD_B(fake_a), True)
        cycle = F.l1_loss(rec_a, real_a) + F.l1_loss(rec_b, real_b)
        (loss_g + self.lambda_cycle * cycle).backward()
        self.optimizer_G.step()

        self.set_requires_grad([self.netD_A, self.netD_B], True)
        self.optimizer_D.zero_grad()
        loss_d = 0.5 * (self.gan_loss(self.netD_A(real_b), True) + self.gan_loss(self.netD_A(self.pool_b.query(fake_b)), False))
        loss_d = loss_d + 0.5 * (self.gan_loss(self.netD_B(real_a), True) + self.gan_loss(self.netD_B(self.pool_a.query(fake_a)), False))
        loss_d.backward()
        self.optimizer_D.step()
        return {"G": loss_g.item(), "cycle": cycle.item(), "D": loss_d.item()}


def curves(count, warm, length=32):
    hours = torch.arange(length) / length * 6.283
    height = 0.6 + 0.3 * torch.rand(count, 1)
    phase = 0.6 * torch.randn(count, 1)
    noise = 0.15 * torch.randn(count, length)
    return (height * torch.sin(hours + phase) * (1.0 if warm else 0.5) + (0.5 if warm else -0.5) + noise).unsqueeze(1)


def main():
    torch.manual_seed(2)
    random.seed(2)
    summer, winter = curves(512, True), curves(512, False)
    model = CycleModel()
    for epoch in range(3):
        a, b = torch.randperm(512), torch.randperm(512)
        for start in range(0, 512, 32):
            shown = model.optimize_parameters(summer[a[start : start + 32]], winter[b[start : start + 32]])
        print(epoch, {name: round(value, 4) for name, value in shown.items()})


if __name__ == "__main__":
    main()
