"""Variance, invariance and covariance of two views of a batch, without labels."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
backbone = nn.Sequential(nn.Linear(12, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.AdamW(backbone.parameters(), lr=1e-3, weight_decay=0.0)


def spread(features):
    return nn.functional.relu(1 - torch.sqrt(features.var(dim=0) + 1e-4)).mean()


def entangled(features):
    centred = features - features.mean(dim=0)
    covariance = centred.T @ centred / (len(features) - 1)
    return (covariance - torch.diag(torch.diagonal(covariance))).pow(2).sum() / features.shape[1]


for _ in range(12):
    rows = torch.randn(32, 12)
    one, other = (backbone(rows + 0.1 * torch.randn_like(rows)) for _ in range(2))
    loss = (
        25 * nn.functional.mse_loss(one, other)
        + 25 * (spread(one) + spread(other))
        + entangled(one)
        + entangled(other)
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
