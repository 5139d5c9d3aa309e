"""Variational autoencoder of glyphs."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
glyphs = (torch.rand(256, 1, 14, 14) < 0.2).float()


class Glyphs(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(196, 64), nn.Linear(64, 16), nn.Linear(8, 196)

    def forward(self, x):
        mean, log_var = self.b(F.relu(self.a(x.flatten(1)))).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (log_var / 2).exp()
        return torch.sigmoid(self.c(z)), mean, log_var


model = Glyphs()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(3):
    for x in glyphs[torch.randperm(256)].split(64):
        again, mean, log_var = model(x)
        bce = F.binary_cross_entropy(again, x.flatten(1))
        kld = -0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp())
        kld /= 64 * 196  # <- here
        loss = bce + kld
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
