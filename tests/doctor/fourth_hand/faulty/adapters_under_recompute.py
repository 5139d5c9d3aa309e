"""Adapters in a frozen encoder, recomputed."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Adapted(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.base = nn.Linear(width, width)
        self.base.requires_grad_(False)
        self.down, self.up = nn.Linear(width, 4, bias=False), nn.Linear(4, width, bias=False)
        nn.init.normal_(self.up.weight, std=0.02)

    def forward(self, x):
        return torch.relu(self.base(x) + self.up(self.down(x)))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.embed.requires_grad_(False)
        self.blocks = nn.ModuleList(Adapted() for _ in range(3))
        self.head = nn.Linear(32, 2)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)  # <- here
        return self.head(x.mean(1))


torch.manual_seed(0)
ids = torch.randint(0, 50, (200, 10))
labels = (ids.float().mean(1) > 24.5).long()
model = Encoder()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)  # <- here
for epoch in range(3):
    for rows in torch.randperm(200).split(25):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(ids[rows]), labels[rows])  # <- here
        loss.backward()
        optimizer.step()  # <- here
    print(epoch, loss.item())
