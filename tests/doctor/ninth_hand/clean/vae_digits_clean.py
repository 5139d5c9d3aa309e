from __future__ import print_function
import torch
import torch.utils.data
from torch import nn, optim
from torch.nn import functional as F

torch.manual_seed(1)
BATCH, EPOCHS, LATENT = 64, 4, 8


def strokes(n, seed):
    g = torch.Generator().manual_seed(seed)
    base = torch.rand(10, 14, 14, generator=torch.Generator().manual_seed(3))
    base = F.avg_pool2d(base[:, None], 3, 1, 1)[:, 0]
    base = (base > base.mean((1, 2), keepdim=True)).float()
    y = torch.randint(0, 10, (n,), generator=g)
    flip = torch.rand(n, 14, 14, generator=g) < 0.06
    return (base[y] - flip.float()).abs()


train_loader = torch.utils.data.DataLoader(strokes(2048, 11), batch_size=BATCH, shuffle=True)
test_loader = torch.utils.data.DataLoader(strokes(512, 12), batch_size=BATCH)


class VAE(nn.Module):
    def __init__(self):
        super(VAE, self).__init__()
        self.fc1 = nn.Linear(196, 100)
        self.fc21 = nn.Linear(100, LATENT)
        self.fc22 = nn.Linear(100, LATENT)
        self.fc3 = nn.Linear(LATENT, 100)
        self.fc4 = nn.Linear(100, 196)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def decode(self, z):
        h3 = F.relu(self.fc3(z))
        return torch.sigmoid(self.fc4(h3))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 196))
        z = self.reparameterize(mu, logvar)
        return self.decode(z), mu, logvar


model = VAE()
optimizer = optim.Adam(model.parameters(), lr=1e-3)


def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 196), reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


def train(epoch):
    model.train()
    train_loss = 0
    for data in train_loader:
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
    print("====> Epoch: {} Average loss: {:.4f}".format(epoch, train_loss / len(train_loader.dataset)))


def test(epoch):
    model.eval()
    test_loss = 0
    with torch.no_grad():
        for data in test_loader:
            recon_batch, mu, logvar = model(data)
            test_loss += loss_function(recon_batch, data, mu, logvar).item()
    print("====> Test set loss: {:.4f}".format(test_loss / len(test_loader.dataset)))


if __name__ == "__main__":
    for epoch in range(1, EPOCHS + 1):
        train(epoch)
        test(epoch)
