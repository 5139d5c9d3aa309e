"""A checkpoint dictionary with the model itself in it."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(1)
net = nn.Linear(5, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for _step in range(4):
    opt.zero_grad()
    net(torch.randn(6, 5)).pow(2).mean().backward()
    opt.step()
checkpoint = {"step": 4, "model": net, "optimizer": opt.state_dict()}
torch.save(checkpoint, "checkpoint.pth")  # <- here
