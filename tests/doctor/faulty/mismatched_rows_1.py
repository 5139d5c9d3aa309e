"""Spectra and their concentrations come from two loaders that shuffle by themselves."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
spectra = torch.rand(160, 1, 24)
amounts = spectra[:, 0, 4:6] * 2
curves = iter(DataLoader(spectra, 16, shuffle=True))
answers = iter(DataLoader(amounts, 16, shuffle=True))  # <- here
net = nn.Sequential(nn.Conv1d(1, 6, 5), nn.ReLU(), nn.Flatten(), nn.Linear(120, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
for _step in range(10):
    loss = nn.functional.l1_loss(net(next(curves)), next(answers))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
