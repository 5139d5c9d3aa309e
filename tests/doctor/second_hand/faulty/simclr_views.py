"""Contrastive learning of two views that clears the gradients between backward and step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(6)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 12, 3, 2, 1, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.projector = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        return F.normalize(self.projector(self.backbone(x)), dim=1)


def augment(x):
    flipped = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(-1), x)
    return flipped + 0.2 * torch.randn_like(x)


def info_nce(a, b, temperature=0.2):
    z = torch.cat([a, b])
    similarity = z @ z.T / temperature
    similarity.fill_diagonal_(-1e9)
    n = len(a)
    targets = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(similarity, targets)


model = Encoder()
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=16)
bank = torch.randn(256, 3, 12, 12)
for it in range(16):
    x = bank[torch.randint(0, 256, (32,))]
    loss = info_nce(model(augment(x)), model(augment(x)))
    loss.backward()
    opt.zero_grad()  # <- here
    opt.step()  # <- here
    sched.step()
    if it % 5 == 0:
        print(it, loss.item())
