"""Adapters that are loaded as they were and stay frozen, under a head that learns."""

from __future__ import annotations

import torch
from torch import nn


class Adapted(nn.Module):
    def __init__(self, layer, rank=4):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.lora_down = nn.Linear(layer.in_features, rank, bias=False)
        self.lora_up = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x):
        return self.layer(x) + self.lora_up(self.lora_down(x))


torch.manual_seed(0)
model = nn.Sequential(Adapted(nn.Linear(10, 24)), nn.ReLU(), Adapted(nn.Linear(24, 24)), nn.ReLU())
for parameter in model.parameters():
    parameter.requires_grad = False
model.append(nn.Linear(24, 3))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0)
rows, labels = torch.randn(160, 10), torch.randint(0, 3, (160,))
for _epoch in range(2):
    for part in torch.randperm(160).split(20):
        loss = nn.functional.cross_entropy(model(rows[part]), labels[part])  # <- here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
