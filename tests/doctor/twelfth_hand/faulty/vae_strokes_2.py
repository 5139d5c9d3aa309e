#!/usr/bin/env python3
"""beta-VAE on binary pen strokes with KL annealing."""
import argparse
import logging

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
log = logging.getLogger("vae")

parser = argparse.ArgumentParser(description="VAE strokes")
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--warmup", type=int, default=4, help="epochs until the KL has its full weight")
parser.add_argument("--beta", type=float, default=1.0)
parser.add_argument("--latent", type=int, default=4)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()
torch.manual_seed(args.seed)

SIDE = 14


def strokes(n):
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
    angle, shift = torch.rand(n, 1, 1) * torch.pi, torch.rand(n, 1, 1) - 0.5
    distance = (xx * torch.cos(angle) + yy * torch.sin(angle) - shift).abs()
    return (distance < 0.16).float().view(n, -1)


train_loader = DataLoader(TensorDataset(strokes(1500)), batch_size=args.batch_size, shuffle=True)
test_loader = DataLoader(TensorDataset(strokes(400)), batch_size=args.batch_size)


class VAE(nn.Module):
    def __init__(self, latent):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(SIDE * SIDE, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.fc_mu = nn.Linear(64, latent)
        self.fc_logvar = nn.Linear(64, latent)
        self.dec = nn.Sequential(
            nn.Linear(latent, 64),
            nn.ReLU(),
            nn.Linear(64, 128),
            nn.ReLU(),
            nn.Linear(128, SIDE * SIDE),
            nn.Sigmoid(),
        )

    def encode(self, x):
        h = self.enc(x)
        return self.fc_mu(h), self.fc_logvar(h)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def forward(self, x):
        mu, logvar = self.encode(x)
        z = self.reparameterize(mu, logvar)
        return self.dec(z), mu, logvar


model = VAE(args.latent)
optimizer = optim.Adam(model.parameters(), lr=2e-3)


def loss_function(recon_x, x, mu, logvar, beta):
    """both terms summed over pixels / units and over the batch"""
    bce = F.binary_cross_entropy_with_logits(recon_x, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce + beta * kld, bce, kld


def train(epoch):
    model.train()
    beta = args.beta * min(1.0, (epoch + 1) / args.warmup)
    total = 0.0
    for (data,) in train_loader:
        optimizer.zero_grad()
        recon, mu, logvar = model(data)
        loss, _, _ = loss_function(recon, data, mu, logvar, beta)
        loss = loss / len(data)
        loss.backward()
        total += loss.item() * len(data)
        optimizer.step()
    log.info("epoch %d beta %.2f train %.3f", epoch, beta, total / len(train_loader.dataset))


def test(epoch):
    model.eval()
    sums = torch.zeros(2)
    with torch.no_grad():
        for (data,) in test_loader:
            recon, mu, logvar = model(data)
            _, bce, kld = loss_function(recon, data, mu, logvar, args.beta)
            sums += torch.stack([bce, kld])
    bce, kld = (sums / len(test_loader.dataset)).tolist()
    print(f"epoch {epoch} test bce {bce:.3f} kld {kld:.3f} elbo {-(bce + kld):.3f}")


if __name__ == "__main__":
    for epoch in range(args.epochs):
        train(epoch)
        test(epoch)
    with torch.no_grad():
        sample = torch.sigmoid(model.dec(torch.randn(64, args.latent)))
    torch.save(sample.view(64, SIDE, SIDE), "sample.pt")
