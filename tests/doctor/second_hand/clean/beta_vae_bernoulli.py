"""A beta-VAE with a Bernoulli decoder on pixels between 0 and 1, whose weight of the divergence is warmed up."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence


class Encoder(nn.Module):
    def __init__(self, latent):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, 2 * latent))

    def forward(self, x):
        mean, log_scale = self.net(x).chunk(2, dim=1)
        return Independent(Normal(mean, log_scale.clamp(-5, 3).exp()), 1)


def bars(n):
    x = torch.zeros(n, 1, 10, 10)
    for i in range(n):
        if torch.rand(()) < 0.5:
            x[i, 0, int(torch.randint(0, 10, ()))] = 1.0
        else:
            x[i, 0, :, int(torch.randint(0, 10, ()))] = 1.0
    return x


def main(latent=6, updates=30, beta=2.0):
    torch.manual_seed(0)
    encoder = Encoder(latent)
    decoder = nn.Sequential(nn.Linear(latent, 64), nn.ReLU(), nn.Linear(64, 100))
    parameters = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    prior = Independent(Normal(torch.zeros(latent), torch.ones(latent)), 1)
    for update in range(updates):
        x = bars(48)
        posterior = encoder(x)
        logits = decoder(posterior.rsample()).view_as(x)
        nll = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum((1, 2, 3))
        weight = beta * min(1.0, update / 15)
        loss = (nll + weight * kl_divergence(posterior, prior)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 10 == 0:
            print(update, loss.item())


main()
