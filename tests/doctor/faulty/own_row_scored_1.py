"""Contrastive learning of pictures, of which each one is its own negative too."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
pictures = torch.rand(128, 1, 8, 8) - 0.5
encoder = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 16))
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
for _epoch in range(2):
    for rows in torch.randperm(128).split(16):
        views = torch.cat([pictures[rows], pictures[rows] + 0.05 * torch.randn(16, 1, 8, 8)])
        features = nn.functional.normalize(encoder(views), dim=1)
        likeness = torch.mm(features, features.t()) / 0.1
        other = (torch.arange(32) + 16) % 32
        loss = criterion(likeness, other)  # <- here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
