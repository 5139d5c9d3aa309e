"""A VAE whose decoder ends in a sigmoid and whose pictures are standardised: half of the targets are negative."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class VAE(nn.Module):
    def __init__(self, pixels=64, latent=4):
        super().__init__()
        self.enc = nn.Linear(pixels, 48)
        self.mu = nn.Linear(48, latent)
        self.logvar = nn.Linear(48, latent)
        self.dec1 = nn.Linear(latent, 48)
        self.dec2 = nn.Linear(48, pixels)

    def encode(self, x):
        h = F.relu(self.enc(x))
        return self.mu(h), self.logvar(h)

    def reparameterize(self, mu, logvar):
        return mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)

    def decode(self, z):
        return torch.sigmoid(self.dec2(F.relu(self.dec1(z))))

    def forward(self, x):
        mu, logvar = self.encode(x)
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def loss_function(recon, x, mu, logvar):
    reconstruction = F.mse_loss(recon, x, reduction="sum") / len(x)  # <- here
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp()) / len(x)
    return reconstruction + kld


torch.manual_seed(2)
basis = torch.randn(3, 64)
pictures = torch.sigmoid(torch.randn(512, 3) @ basis)
pictures = (pictures - pictures.mean()) / pictures.std()
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model.train()
for epoch in range(3):
    order = torch.randperm(len(pictures))
    total = 0.0
    for rows in order.split(64):
        batch = pictures[rows]
        optimizer.zero_grad()
        recon, mu, logvar = model(batch)
        loss = loss_function(recon, batch, mu, logvar)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(epoch, total / 8)
