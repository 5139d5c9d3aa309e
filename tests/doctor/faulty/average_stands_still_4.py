"""A target network that takes nearly all of the online network in each step: its rate is meant the other way round."""

from __future__ import annotations

import copy

import torch
from torch import nn

torch.manual_seed(0)


def follow(target, online, tau):
    with torch.no_grad():
        for t, o in zip(target.parameters(), online.parameters(), strict=True):
            t.data.copy_(tau * t.data + (1 - tau) * o.data)  # <- here


net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
tgt = copy.deepcopy(net)
opt = torch.optim.Adam(net.parameters(), 1e-3)
TAU = 0.005
for _s in range(40):
    st, a, r, s2 = torch.randn(32, 4), torch.randint(0, 3, (32,)), torch.randn(32), torch.randn(32, 4)
    with torch.no_grad():
        y = r + 0.9 * tgt(s2).max(1).values
    loss = nn.functional.mse_loss(net(st).gather(1, a[:, None]).squeeze(1), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    follow(tgt, net, TAU)
