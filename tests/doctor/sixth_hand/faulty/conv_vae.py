"""A convolutional variational autoencoder of small faces."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

CONFIG = {"latent": 8, "channels": (16, 32), "epochs": 3, "batch_size": 32, "lr": 1e-3, "beta": 1.0}


def draw_faces(count, seed):
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    faces = []
    for _ in range(count):
        a, b, c = (torch.rand(3, generator=generator) * 0.4 + 0.4).tolist()
        head = ((rows / a) ** 2 + (columns / b) ** 2 < 1).float()
        eyes = (((rows + 0.2) ** 2 + (columns.abs() - 0.25) ** 2) < 0.03 * c).float()
        faces.append((head - 0.7 * eyes).clamp(0, 1))
    return torch.stack(faces).unsqueeze(1)


class VAE(nn.Module):
    def __init__(self, latent, channels):
        super().__init__()
        first, second = channels
        self.encoder = nn.Sequential(
            nn.Conv2d(1, first, 4, 2, 1), nn.ReLU(), nn.Conv2d(first, second, 4, 2, 1), nn.ReLU(), nn.Flatten()
        )
        self.mean = nn.Linear(second * 16, latent)
        self.logvar = nn.Linear(second * 16, latent)
        self.expand = nn.Linear(latent, second * 16)
        self.decoder = nn.Sequential(
            nn.ReLU(), nn.ConvTranspose2d(second, first, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(first, 1, 4, 2, 1)
        )

    def forward(self, x):
        features = self.encoder(x)
        mu, logvar = self.mean(features), self.logvar(features)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.decoder(self.expand(z).view(len(x), -1, 4, 4)), mu, logvar


def elbo(logits, x, mu, logvar, beta):
    reconstruction = F.binary_cross_entropy_with_logits(logits, x, reduction="mean")  # <- here
    divergence = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())  # <- here
    return reconstruction + beta * divergence, reconstruction, divergence  # <- here


class Trainer:
    def __init__(self, config):
        self.config = config
        self.model = VAE(config["latent"], config["channels"])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config["lr"])

    def fit(self, faces):
        loader = DataLoader(faces, batch_size=self.config["batch_size"], shuffle=True)
        for epoch in range(self.config["epochs"]):
            self.model.train()
            for batch in loader:
                logits, mu, logvar = self.model(batch)
                loss, reconstruction, divergence = elbo(logits, batch, mu, logvar, self.config["beta"])
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                self.optimizer.step()
            print(f"epoch {epoch}: reconstruction {reconstruction.item():.4f}, divergence {divergence.item():.4f}")

    @torch.no_grad()
    def sample(self, count):
        self.model.eval()
        z = torch.randn(count, self.config["latent"])
        return torch.sigmoid(self.model.decoder(self.model.expand(z).view(count, -1, 4, 4)))


if __name__ == "__main__":
    torch.manual_seed(5)
    trainer = Trainer(CONFIG)
    trainer.fit(draw_faces(512, seed=5))
    print("brightness of samples:", trainer.sample(16).mean().item())
