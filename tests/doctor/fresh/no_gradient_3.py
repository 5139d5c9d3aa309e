"""The loss is made anew from its number, so nothing is behind it."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(1)
net = nn.Linear(7, 2)
opt = torch.optim.Adam(net.parameters(), lr=0.01)
for _step in range(5):
    scores = net(torch.randn(10, 7))
    value = nn.functional.cross_entropy(scores, torch.randint(0, 2, (10,))).item()  # <- here
    loss = torch.tensor(value, requires_grad=True)
    opt.zero_grad()
    loss.backward()
    opt.step()
