"""The hidden layers live in a plain list, so parameters() does not know them."""

from __future__ import annotations

import torch
from torch import nn


class Deep(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.hidden = [nn.Linear(8, 8) for _ in range(depth)]  # <- here
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.out(x)


torch.manual_seed(1)
net = Deep()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _step in range(6):
    loss = nn.functional.cross_entropy(net(torch.randn(16, 8)), torch.randint(0, 2, (16,)))
    opt.zero_grad()
    loss.backward()
    opt.step()
