"""A layer is frozen in the middle of training; momentum moves it on."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)  # <- here
for update in range(8):
    if update == 3:
        model[0].requires_grad_(False)
    optimizer.zero_grad(set_to_none=False)
    nn.functional.mse_loss(model(torch.randn(16, 6)), torch.randn(16, 1)).backward()
    optimizer.step()
