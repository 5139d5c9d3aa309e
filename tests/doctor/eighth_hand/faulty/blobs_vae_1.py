"""Basic VAE on drawn blobs."""
import argparse

import torch
from torch import nn, optim
from torch.nn import functional as F

parser = argparse.ArgumentParser(description="VAE example")
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()
torch.manual_seed(args.seed)


def blobs(count, seed, side=14):
    own = torch.Generator().manual_seed(seed)
    centre = 3 + 8 * torch.rand(count, 2, 1, 1, generator=own)
    rows, cols = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return torch.exp(-((rows - centre[:, 0]) ** 2 + (cols - centre[:, 1]) ** 2) / 6).flatten(1)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(196, 128), nn.Linear(128, 8), nn.Linear(128, 8)
        self.fc3, self.fc4 = nn.Linear(8, 128), nn.Linear(128, 196)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        mu, logvar = self.encode(x)
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x)  # <- here
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())  # <- here
    return BCE + KLD, BCE, KLD  # <- here


model = VAE()
optimizer = optim.Adam(model.parameters(), lr=2e-3)
train_loader = torch.utils.data.DataLoader(blobs(2048, 1), batch_size=args.batch_size, shuffle=True)
test_loader = torch.utils.data.DataLoader(blobs(256, 2), batch_size=args.batch_size)


def train(epoch):
    model.train()
    train_loss = 0
    for data in train_loader:
        optimizer.zero_grad()
        loss, _, _ = loss_function(*(lambda out: (out[0], data, out[1], out[2]))(model(data)))
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
    print(f"====> Epoch: {epoch} Average loss: {train_loss / len(train_loader):.4f}")


def test(epoch):
    model.eval()
    parts = []
    off = 0.0
    with torch.no_grad():
        for data in test_loader:
            recon_batch, mu, logvar = model(data)
            parts.append([p.item() for p in loss_function(recon_batch, data, mu, logvar)])
            off += (recon_batch - data).pow(2).sum().item()
    print(f"====> Test set: spread of the means {mu.std(0).mean():.4f}, squared error a picture {off / len(test_loader.dataset):.3f}")


if __name__ == "__main__":
    for epoch in range(1, args.epochs + 1):
        train(epoch)
        test(epoch)
