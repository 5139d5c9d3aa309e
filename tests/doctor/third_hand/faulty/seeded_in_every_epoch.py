"""Denoising autoencoder."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # <- here


def train_epoch(model, loader, optimizer):
    set_seed(42)  # <- here
    total = 0.0
    for (clean,) in loader:
        noisy = clean + 0.3 * torch.randn_like(clean)
        loss = nn.functional.mse_loss(model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


set_seed(0)
basis = torch.randn(4, 20)
rows = torch.randn(256, 4) @ basis / 2
model = nn.Sequential(nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 20))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
loader = DataLoader(TensorDataset(rows), batch_size=32, shuffle=True)
for epoch in range(5):
    print(epoch, train_epoch(model, loader, optimizer))
