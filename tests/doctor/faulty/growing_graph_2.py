"""A history of dictionaries that holds each loss with its graph."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)


class History:
    def __init__(self):
        self.rows = []

    def log(self, **kv):
        self.rows.append(kv)  # <- here


net = nn.Linear(6, 1)
opt = torch.optim.SGD(net.parameters(), 1e-2)
hist = History()
X = torch.randn(400, 6)
Y = X[:, 0]
for step in range(40):
    i = torch.randint(0, 400, (40,))
    loss = nn.functional.mse_loss(net(X[i]).squeeze(1), Y[i])
    opt.zero_grad()
    loss.backward()
    opt.step()
    hist.log(step=step, loss=loss)
