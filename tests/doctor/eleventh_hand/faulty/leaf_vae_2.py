"""Variational auto-encoder of leaf silhouettes, after the PyTorch example (argparse, functions)."""
import argparse

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser(description="VAE leaves")
parser.add_argument("--batch-size", type=int, default=40)
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--latent", type=int, default=6)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--log-interval", type=int, default=10)
args = parser.parse_args()
torch.manual_seed(args.seed)


def leaves(count, seed):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    turn = torch.rand(count, 1, 1, generator=g) * 3.14
    thin = 0.25 + 0.4 * torch.rand(count, 1, 1, generator=g)
    u = xx * torch.cos(turn) + yy * torch.sin(turn)
    v = -xx * torch.sin(turn) + yy * torch.cos(turn)
    return torch.sigmoid(14 * (0.8 - (u**2 + (v / thin) ** 2).sqrt())).unsqueeze(1)


train_loader = DataLoader(leaves(1200, 1), batch_size=args.batch_size, shuffle=True)
test_loader = DataLoader(leaves(200, 2), batch_size=args.batch_size)


class VAE(nn.Module):
    def __init__(self, latent):
        super().__init__()
        self.fc1 = nn.Linear(256, 128)
        self.fc21 = nn.Linear(128, latent)
        self.fc22 = nn.Linear(128, latent)
        self.fc3 = nn.Linear(latent, 128)
        self.fc4 = nn.Linear(128, 256)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def decode(self, z):
        h3 = F.relu(self.fc3(z))
        return torch.sigmoid(self.fc4(h3))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 256))
        z = self.reparameterize(mu, logvar)
        return self.decode(z), mu, logvar


model = VAE(args.latent)
optimizer = optim.Adam(model.parameters(), lr=2e-3)


def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 256), reduction="sum")
    # see Appendix B of the VAE paper: Kingma and Welling, 2014
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


def train(epoch):
    model.train()
    train_loss = 0
    for batch_idx, data in enumerate(train_loader):
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar) / len(data)
        loss.backward()
        train_loss += loss.item() * len(data)
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(train_loader.dataset)}] Loss: {loss.item():.3f}")
    print(f"====> Epoch: {epoch} Average loss: {train_loss / len(train_loader.dataset):.4f}")


def test(epoch):
    model.eval()
    test_loss, spread = 0, 0
    with torch.no_grad():
        for data in test_loader:
            recon_batch, mu, logvar = model(data)
            test_loss += loss_function(recon_batch, data, mu, logvar).item()
            spread += mu.std(0).mean().item() / len(test_loader)
    size = len(test_loader.dataset)
    sample = model.decode(torch.randn(64, args.latent)).mean().item()
    print(f"====> Test set loss: {test_loss / size:.4f} spread of means {spread:.3f} samples' brightness {sample:.3f}")


for epoch in range(1, args.epochs + 1):
    train(epoch)
    test(epoch)
