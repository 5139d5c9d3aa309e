"""Ten micro-batches from a list, in windows of four: each epoch's last two slip into the next."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(1)
rows, targets = torch.randn(80, 4), torch.randn(80, 1)
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for _epoch in range(2):
    order = torch.randperm(80)
    for index, start in enumerate(range(0, 80, 8)):
        chosen = order[start : start + 8]
        loss = nn.functional.mse_loss(net(rows[chosen]), targets[chosen])
        (loss / 4).backward()  # <- here
        if index % 4 == 3:
            opt.step()
            opt.zero_grad()
