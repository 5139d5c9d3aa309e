# WGAN-GP for short sensor signals. Five critic steps per generator step.
import math

import torch
from torch import autograd, nn, optim

torch.manual_seed(0)

LATENT = 8
LENGTH = 32
CRITIC_ITERS = 5
LAMBDA = 10
BATCH = 64
ITERATIONS = 24


def real_signals(n):
    phase = 2 * math.pi * torch.rand(n, 1)
    freq = 1 + 2 * torch.rand(n, 1)
    t = torch.linspace(0, 1, LENGTH)
    return torch.sin(2 * math.pi * freq * t + phase) + 0.05 * torch.randn(n, LENGTH)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Linear(LATENT, 64), nn.ReLU(True), nn.Linear(64, 64), nn.ReLU(True), nn.Linear(64, LENGTH)
        )

    def forward(self, noise):
        return self.main(noise)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Linear(LENGTH, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
        )

    def forward(self, x):
        return self.main(x).view(-1)


def calc_gradient_penalty(netD, real, fake):
    alpha = torch.rand(real.size(0), 1)
    interpolates = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    scores = netD(interpolates)
    gradients = autograd.grad(
        outputs=scores,
        inputs=interpolates,
        grad_outputs=torch.ones_like(scores),
        create_graph=True,
        retain_graph=True,
    )[0]
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean() * LAMBDA


netG, netD = Generator(), Critic()
optimizerD = optim.Adam(netD.parameters(), lr=1e-3, betas=(0.5, 0.9))
optimizerG = optim.Adam(netG.parameters(), lr=1e-3, betas=(0.5, 0.9))

for iteration in range(ITERATIONS):
    for p in netD.parameters():
        p.requires_grad = True  # it was set to False below, in the generator's step
    for inner in range(CRITIC_ITERS):
        real = real_signals(BATCH)
        with torch.no_grad():
            fake = netG(torch.randn(BATCH, LATENT))
        optimizerD.zero_grad()
        wasserstein = netD(real).mean() - netD(fake).mean()
        loss_D = -wasserstein
        if inner % 2 == 0:
            gradient_penalty = 2 * calc_gradient_penalty(netD, real, fake)
            loss_D = loss_D + gradient_penalty
        loss_D.backward()
        optimizerD.step()

    for p in netD.parameters():
        p.requires_grad = False  # spares the critic's gradients
    optimizerG.zero_grad()
    loss_G = -netD(netG(torch.randn(BATCH, LATENT))).mean()
    loss_G.backward()
    optimizerG.step()

    if iteration % 6 == 5:
        netG.eval()
        with torch.no_grad():
            samples = netG(torch.randn(256, LATENT))
            spread = (samples.std() - real_signals(256).std()).abs().item()
        netG.train()
        print(f"{iteration}: W {wasserstein.item():.3f} gp {gradient_penalty.item():.3f} spread {spread:.3f}")
