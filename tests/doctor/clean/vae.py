"""A variational autoencoder: the input is its own target, samples from the prior in evaluation mode."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

torch.manual_seed(0)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.mean, self.log_var = nn.Linear(20, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 20), nn.Sigmoid())

    def forward(self, x):
        hidden = F.relu(self.encoder(x))
        mean, log_var = self.mean(hidden), self.log_var(hidden)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_var)
        return self.decoder(z), mean, log_var


model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(torch.rand(64, 20), batch_size=16, shuffle=True)
for _epoch in range(2):
    model.train()
    for data in loader:
        optimizer.zero_grad()
        recon, mean, log_var = model(data)
        loss = F.binary_cross_entropy(recon, data, reduction="sum")
        loss = loss - 0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp())
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        model.decoder(torch.randn(8, 4))
