"""Barlow Twins: two views through one net, both with gradients, and a loss of their correlations."""

from __future__ import annotations

import torch
import torch.nn as nn


class BarlowTwins(nn.Module):
    def __init__(self, dim=24, lambd=0.005):
        super().__init__()
        self.lambd = lambd
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()
        )
        self.projector = nn.Sequential(
            nn.Linear(8 * 25, 48, bias=False),
            nn.BatchNorm1d(48),
            nn.ReLU(inplace=True),
            nn.Linear(48, dim, bias=False),
        )
        self.bn = nn.BatchNorm1d(dim, affine=False)

    def forward(self, y1, y2):
        z1, z2 = self.projector(self.backbone(y1)), self.projector(self.backbone(y2))
        c = self.bn(z1).T @ self.bn(z2) / len(y1)
        on_diag = torch.diagonal(c).add(-1).pow(2).sum()
        off_diag = c.flatten()[:-1].view(c.shape[0] - 1, -1)[:, 1:].pow(2).sum()
        return on_diag + self.lambd * off_diag


def two_views(images):
    return [images.roll(int(torch.randint(-1, 2, ())), -1) + 0.1 * torch.randn_like(images) for _ in range(2)]


torch.manual_seed(0)
images = torch.randn(192, 1, 10, 10)
model = BarlowTwins()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 1e-4, 1.0, total_iters=6)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 18)
schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], [6])
step = 0
while step < 24:
    for rows in torch.randperm(192).split(32):
        loss = model(*two_views(images[rows]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        step += 1
    print(step, loss.item())
