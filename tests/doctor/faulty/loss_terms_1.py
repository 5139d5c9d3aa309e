"""A VAE of sensor windows: the mean of the squared errors and the sum of all divergences."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
windows = torch.randn(512, 30).cumsum(1) / 5
encoder, decoder = nn.Linear(30, 8), nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 30))
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
for epoch in range(2):
    for x in DataLoader(windows, batch_size=64, shuffle=True):
        mean, log_var = encoder(x).chunk(2, dim=1)
        again = decoder(mean + torch.randn_like(mean) * (0.5 * log_var).exp())
        divergence = -0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp())  # <- here
        loss = nn.MSELoss()(again, x) + divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
