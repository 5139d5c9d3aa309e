"""Labels begin at one."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    labels = torch.randint(1, 4, (32,))
    loss = nn.functional.cross_entropy(model(torch.randn(32, 6)), labels)  # <- here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
