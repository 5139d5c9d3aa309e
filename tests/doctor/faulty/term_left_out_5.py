"""A Wasserstein GAN whose gradient penalty is computed and reported, and never learned."""

from __future__ import annotations

import math

import torch
import torch.nn as nn


class Generator(nn.Module):
    def __init__(self, latent_dim):
        super().__init__()
        self.latent_dim = latent_dim
        self.model = nn.Sequential(
            nn.Linear(latent_dim, 64),
            nn.LeakyReLU(0.2),
            nn.Linear(64, 64),
            nn.LeakyReLU(0.2),
            nn.Linear(64, 2),
        )

    def forward(self, z):
        return self.model(z)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
        )

    def forward(self, x):
        return self.model(x)


class WGAN_GP:
    def __init__(self, latent_dim=4, n_critic=5, lambda_gp=10.0, lr=1e-3):
        self.G, self.D = Generator(latent_dim), Critic()
        self.n_critic, self.lambda_gp = n_critic, lambda_gp
        self.optimizer_G = torch.optim.Adam(self.G.parameters(), lr=lr, betas=(0.5, 0.9))
        self.optimizer_D = torch.optim.Adam(self.D.parameters(), lr=lr, betas=(0.5, 0.9))

    def compute_gradient_penalty(self, real_samples, fake_samples):
        """Of the slope on lines between real and fake samples, which should be 1."""
        alpha = torch.rand(real_samples.size(0), 1)
        interpolates = (alpha * real_samples + (1 - alpha) * fake_samples).requires_grad_(True)
        d_interpolates = self.D(interpolates)
        gradients = torch.autograd.grad(
            outputs=d_interpolates,
            inputs=interpolates,
            grad_outputs=torch.ones_like(d_interpolates),
            create_graph=True,
        )[0]
        self.slope = gradients.norm(2, dim=1).mean().item()
        return ((gradients.norm(2, dim=1) - 1) ** 2).mean()

    def train_critic(self, real):
        fake = self.G(torch.randn(len(real), self.G.latent_dim)).detach()
        gradient_penalty = self.compute_gradient_penalty(real, fake)
        wasserstein = self.D(fake).mean() - self.D(real).mean()
        d_loss = wasserstein
        self.optimizer_D.zero_grad()
        d_loss.backward()  # <- here
        self.optimizer_D.step()
        return -wasserstein.item(), gradient_penalty.item()

    def train_generator(self, count):
        g_loss = -self.D(self.G(torch.randn(count, self.G.latent_dim))).mean()
        self.optimizer_G.zero_grad()
        g_loss.backward()
        self.optimizer_G.step()

    def fit(self, sample, steps, batch_size=64):
        for step in range(steps):
            for _ in range(self.n_critic):
                distance, penalty = self.train_critic(sample(batch_size))
            self.train_generator(batch_size)
            if (step + 1) % 50 == 0:
                print(
                    f"step {step + 1}: distance {distance:.3f}, penalty {penalty:.3f}, slope {self.slope:.2f}"
                )


def moons(count):
    angle, upper = math.pi * torch.rand(count), torch.rand(count) < 0.5
    x = torch.where(upper, torch.cos(angle), 1 - torch.cos(angle))
    y = torch.where(upper, torch.sin(angle), 0.5 - torch.sin(angle))
    return torch.stack([x, y], 1) + 0.05 * torch.randn(count, 2)


if __name__ == "__main__":
    torch.manual_seed(2)
    WGAN_GP().fit(moons, 200)
