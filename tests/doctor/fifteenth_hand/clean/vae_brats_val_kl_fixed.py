import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
from torch.nn import L1Loss
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
np.random.seed(0)


def make_volumes(n, seed):
    rng = np.random.RandomState(seed)
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 12)] * 3, indexing="ij"))
    out = np.zeros((n, 1, 12, 12, 12), np.float32)
    for i in range(n):
        c = rng.uniform(-0.5, 0.5, 3).reshape(3, 1, 1, 1)
        r = rng.uniform(0.25, 0.5)
        out[i, 0] = np.exp(-((grid - c) ** 2).sum(0) / (2 * r * r))
    out += 0.03 * rng.randn(*out.shape).astype(np.float32)
    return TensorDataset(torch.from_numpy(out))


class AutoencoderKL(nn.Module):
    def __init__(self, latent=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv3d(1, 8, 3, stride=2, padding=1), nn.SiLU(),
                                     nn.Conv3d(8, 16, 3, stride=2, padding=1), nn.SiLU(), nn.Flatten(),
                                     nn.Linear(16 * 27, 64), nn.SiLU())
        self.quant_mu, self.quant_log_sigma = nn.Linear(64, latent), nn.Linear(64, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 64), nn.SiLU(), nn.Linear(64, 16 * 27), nn.SiLU(),
                                     nn.Unflatten(1, (16, 3, 3, 3)),
                                     nn.ConvTranspose3d(16, 8, 4, stride=2, padding=1), nn.SiLU(),
                                     nn.ConvTranspose3d(8, 1, 4, stride=2, padding=1))

    def forward(self, x):
        h = self.encoder(x)
        z_mu = self.quant_mu(h)
        z_sigma = torch.exp(self.quant_log_sigma(h).clamp(-15, 10))
        z = z_mu + torch.randn_like(z_sigma) * z_sigma if self.training else z_mu
        return self.decoder(z), z_mu, z_sigma


def KL_loss(z_mu, z_sigma):
    kl = 0.5 * torch.sum(z_mu.pow(2) + z_sigma.pow(2) - torch.log(z_sigma.pow(2)) - 1, dim=1)
    return kl.sum() / kl.shape[0]


dataloader_train = DataLoader(make_volumes(240, 1), batch_size=16, shuffle=True, drop_last=True)
dataloader_val = DataLoader(make_volumes(50, 2), batch_size=16, shuffle=False)

autoencoder = AutoencoderKL()
intensity_loss = L1Loss()
kl_weight = 2e-3
max_epochs = 8
val_interval = 2
best_val_recon_epoch_loss = 100.0
trained_path = os.path.join(tempfile.mkdtemp(), "autoencoder.pt")
optimizer_g = torch.optim.Adam(autoencoder.parameters(), lr=1e-3)

for epoch in range(max_epochs):
    autoencoder.train()
    train_epoch_losses = {"recons_loss": 0.0, "kl_loss": 0.0}
    for (images,) in dataloader_train:
        optimizer_g.zero_grad(set_to_none=True)
        reconstruction, z_mu, z_sigma = autoencoder(images)
        losses = {"recons_loss": intensity_loss(reconstruction, images), "kl_loss": KL_loss(z_mu, z_sigma)}
        loss_g = losses["recons_loss"] + kl_weight * losses["kl_loss"]
        loss_g.backward()
        optimizer_g.step()
        for name, value in losses.items():
            train_epoch_losses[name] += value.item() / len(dataloader_train)
    print(f"epoch {epoch}: " + " ".join(f"train_{k} {v:.4f}" for k, v in train_epoch_losses.items()))

    if (epoch + 1) % val_interval == 0:
        autoencoder.eval()
        val_epoch_losses = {"recons_loss": 0.0, "kl_loss": 0.0}
        for (images,) in dataloader_val:
            with torch.no_grad():
                reconstruction, z_mu, z_sigma = autoencoder(images)
                share = images.shape[0] / len(dataloader_val.dataset)
                val_epoch_losses["recons_loss"] += share * intensity_loss(reconstruction, images).item()
                val_epoch_losses["kl_loss"] += share * KL_loss(z_mu, z_sigma).item()
        val_loss_g = val_epoch_losses["recons_loss"] + kl_weight * val_epoch_losses["kl_loss"]
        print(f"epoch {epoch} val_loss: {val_loss_g:.4f} ({val_epoch_losses['recons_loss']:.4f}, kl {val_epoch_losses['kl_loss']:.4f})")
        if val_loss_g < best_val_recon_epoch_loss:
            best_val_recon_epoch_loss = val_loss_g
            torch.save(autoencoder.state_dict(), trained_path)
            print("Got best val loss.")
