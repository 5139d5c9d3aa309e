"""The backbone is unfrozen later, and no optimizer knows it."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
backbone, head = nn.Sequential(nn.Linear(6, 12), nn.ReLU()), nn.Linear(12, 2)
backbone.requires_grad_(False)
model = nn.Sequential(backbone, head)
optimizer = torch.optim.AdamW(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-2)
for update in range(8):
    if update == 4:
        backbone.requires_grad_(True)  # <- here
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.randn(16, 6)), torch.randint(0, 2, (16,))).backward()
    optimizer.step()
