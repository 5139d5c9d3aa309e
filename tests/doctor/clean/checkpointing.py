"""Activation checkpointing and a compiled model: modules run again inside backward."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1))
        self.second = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = checkpoint(self.first, x, use_reentrant=False)
        x = checkpoint(self.second, x, use_reentrant=True)
        return self.head(x)


model = Net()
compiled = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)), backend="eager")
optimizer = torch.optim.Adam([*model.parameters(), *compiled.parameters()], lr=1e-2)
for _ in range(6):
    inputs, labels = torch.randn(16, 8), torch.randint(0, 3, (16,))
    loss = nn.functional.cross_entropy(model(inputs) + compiled(inputs), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
