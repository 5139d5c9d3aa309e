"""Two tasks with losses of their own, differentiated one after the other, one step for both."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
trunk = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
heads = nn.ModuleDict({"price": nn.Linear(16, 1), "size": nn.Linear(16, 1)})
optimizer = torch.optim.Adam([*trunk.parameters(), *heads.parameters()], lr=1e-2)
for _ in range(6):
    inputs, targets = torch.randn(16, 8), {"price": torch.randn(16, 1), "size": torch.randn(16, 1)}
    optimizer.zero_grad()
    features = trunk(inputs)
    for name, head in heads.items():
        loss = nn.functional.mse_loss(head(features), targets[name])
        loss.backward(retain_graph=True)
    optimizer.step()
