"""A variational autoencoder of 14 x 14 shapes, as a class with train and test."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def shapes(count, seed, size=14):
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.zeros(count, 1, size, size)
    for picture in pictures:
        x, y, w, h = (torch.randint(low, high, (1,), generator=generator).item() for low, high in ((0, 7), (0, 7), (3, 7), (3, 7)))
        picture[0, y : y + h, x : x + w] = 0.6 + 0.4 * torch.rand(1, generator=generator)
    return pictures


class VAE(nn.Module):
    def __init__(self, latent=8, hidden=96):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(196, hidden), nn.ReLU(), nn.Dropout(0.1))
        self.mu, self.logvar = nn.Linear(hidden, latent), nn.Linear(hidden, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, 196), nn.Sigmoid())

    def reparameterize(self, mu, logvar):
        if self.training:
            return mu + torch.exp(0.5 * logvar) * torch.randn_like(logvar)
        return mu

    def forward(self, x):
        hidden = self.encoder(x)
        mu, logvar = self.mu(hidden), self.logvar(hidden)
        return self.decoder(self.reparameterize(mu, logvar)).view_as(x), mu, logvar


class Runner:
    def __init__(self, model, train_loader, test_loader, lr=2e-3, beta=1.0):
        self.model, self.train_loader, self.test_loader, self.beta = model, train_loader, test_loader, beta
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.model.train()

    def loss_function(self, recon, x, mu, logvar):
        reconstruction = F.binary_cross_entropy(recon, x, reduction="sum") / len(x)
        divergence = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp()) / len(x)
        self.kl = divergence.item()
        return reconstruction + self.beta * divergence

    def train(self, epoch):
        total = 0.0
        for (data,) in self.train_loader:  # <- here
            self.optimizer.zero_grad()
            recon, mu, logvar = self.model(data)  # <- here
            loss = self.loss_function(recon, data, mu, logvar)
            loss.backward()
            total += loss.item()
            self.optimizer.step()
        print(f"====> Epoch: {epoch} Average loss: {total / len(self.train_loader):.3f}, divergence {self.kl:.3f}")

    @torch.no_grad()
    def test(self):
        self.model.eval()  # <- here
        total = sum(self.loss_function(*self.replay(data)).item() * len(data) for (data,) in self.test_loader)
        print(f"====> Test set loss: {total / len(self.test_loader.dataset):.3f}")

    def replay(self, data):
        recon, mu, logvar = self.model(data)
        return recon, data, mu, logvar


def main():
    torch.manual_seed(4)
    train_loader = DataLoader(TensorDataset(shapes(640, 1)), batch_size=32, shuffle=True)
    test_loader = DataLoader(TensorDataset(shapes(128, 2)), batch_size=64)
    runner = Runner(VAE(), train_loader, test_loader)
    for epoch in range(1, 5):
        runner.train(epoch)
        runner.test()


if __name__ == "__main__":
    main()
