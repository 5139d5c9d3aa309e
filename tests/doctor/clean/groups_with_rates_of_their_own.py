"""Groups of parameters with rates of their own."""

from __future__ import annotations

import torch
from torch import nn

CFG = {"backbone_lr": 1e-4, "head_lr": 1e-3, "freeze_epochs": 1}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.body(x))


def groups(net, cfg):
    return [
        {"params": net.body.parameters(), "lr": cfg["backbone_lr"]},
        {"params": net.head.parameters(), "lr": cfg["head_lr"]},
    ]


torch.manual_seed(0)
net = Net()
opt = torch.optim.Adam(groups(net, CFG))
X = torch.randn(256, 8)
Y = (X[:, 0] > 0).long()
for _step in range(30):
    i = torch.randint(0, 256, (32,))
    loss = nn.functional.cross_entropy(net(X[i]), Y[i])
    opt.zero_grad()
    loss.backward()
    opt.step()
