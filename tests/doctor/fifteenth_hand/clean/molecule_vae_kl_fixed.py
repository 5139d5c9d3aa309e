import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Loss:
    def _create_pytorch_loss(self):
        raise NotImplementedError


class VAE_KLDivergence(Loss):
    """KL divergence of the encoder's normal distribution (its mean and log-variance) from the standard one."""

    def _create_pytorch_loss(self):

        def loss(logvar, mu):
            return 0.5 * torch.sum(torch.square(mu) + torch.exp(logvar) - logvar - 1, -1)

        return loss


class VAE_ELBO(Loss):

    def __init__(self, kl_scale=1.0):
        self.kl_scale = kl_scale

    def _create_pytorch_loss(self):
        kld = VAE_KLDivergence()._create_pytorch_loss()
        bce = nn.BCEWithLogitsLoss(reduction="none")

        def loss(logvar, mu, x, reconstruction_x):
            reconstruction, kl = bce(reconstruction_x, x).sum(-1), kld(logvar, mu)
            return (reconstruction + self.kl_scale * kl).mean(), reconstruction.mean().item(), kl.mean().item()

        return loss


class FingerprintVAE(nn.Module):
    def __init__(self, n_bits=64, latent=8, width=96):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(n_bits, width), nn.ReLU())
        self.mu, self.logvar = nn.Linear(width, latent), nn.Linear(width, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, width), nn.ReLU(), nn.Linear(width, n_bits))

    def forward(self, x):
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h).clamp(-10, 6)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar) if self.training else mu
        return self.decoder(z), mu, logvar


def fingerprints(n, seed):
    """Bits that come in blocks: a molecule has some of eight scaffolds."""
    rng = np.random.RandomState(seed)
    has = rng.rand(n, 8) < 0.4
    bits = np.repeat(has, 8, axis=1).astype(np.float32)
    flip = rng.rand(n, 64) < 0.04
    return TensorDataset(torch.from_numpy(np.abs(bits - flip).astype(np.float32)))


def fit(model, loader, valid, loss_fn, nb_epoch=20):
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(nb_epoch):
        model.train()
        for (x,) in loader:
            reconstruction, mu, logvar = model(x)
            loss, rec, kl = loss_fn(logvar, mu, x, reconstruction)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 4 == 3:
            model.eval()
            with torch.no_grad():
                reconstruction, mu, logvar = model(valid)
                val, rec, kl = loss_fn(logvar, mu, valid, reconstruction)
            print(f"epoch {epoch + 1} loss {loss.item():.3f} valid loss {val.item():.3f} (reconstruction {rec:.3f}, kl {kl:.3f}) mean std of z {torch.exp(0.5 * logvar).mean():.3f}")


def main():
    torch.manual_seed(123)
    model = FingerprintVAE()
    loader = DataLoader(fingerprints(1500, 1), batch_size=50, shuffle=True)
    fit(model, loader, fingerprints(400, 2).tensors[0], VAE_ELBO()._create_pytorch_loss())
    model.eval()
    with torch.no_grad():
        drawn = (torch.sigmoid(model.decoder(torch.randn(1000, 8))) > 0.5).float().view(1000, 8, 8).mean(-1)
    whole = ((drawn < 0.2) | (drawn > 0.8)).float().mean().item()
    print(f"samples from the prior: share of scaffolds that are whole or absent {whole:.3f}, present {drawn.mean():.3f}")


if __name__ == "__main__":
    main()
