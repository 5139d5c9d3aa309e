"""An average of the weights in a copy of the network, moved by lerp_."""

from __future__ import annotations

import copy

import torch
from torch import nn


class Smoothed:
    def __init__(self, source, rate):
        self.network, self.rate = copy.deepcopy(source), rate

    @torch.no_grad()
    def follow(self, source):
        for mine, other in zip(self.network.parameters(), source.parameters(), strict=True):
            mine.lerp_(other, self.rate)


torch.manual_seed(7)
network = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
smoothed = Smoothed(network, 0.05)
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
for _ in range(20):
    rows = torch.randn(32, 4)
    loss = nn.functional.mse_loss(network(rows), rows.square().sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    smoothed.follow(network)
