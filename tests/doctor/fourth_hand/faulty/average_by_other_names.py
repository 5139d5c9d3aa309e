"""Keyword spotter with a moving average."""

from __future__ import annotations

import copy

import torch
from torch import nn


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


class Average:
    def __init__(self, model, decay=0.9):
        self.model, self.decay = copy.deepcopy(model), decay

    @torch.no_grad()
    def update(self, model):
        mine = dict(self.model.named_parameters())
        for name, value in model.named_parameters():
            if name in mine:  # <- here
                mine[name].lerp_(value, 1 - self.decay)


torch.manual_seed(0)
word = torch.randint(0, 6, (300,))
sound = torch.randn(300, 40) + torch.randn(6, 40)[word]
net = nn.Sequential(nn.Linear(40, 32), nn.ReLU(), nn.Linear(32, 6))
average, model = Average(net), Wrapped(net)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(4):
    for rows in torch.randperm(240).split(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(sound[rows]), word[rows]).backward()
        optimizer.step()
        average.update(model)
    with torch.no_grad():
        print(epoch, (average.model(sound[240:]).argmax(1) == word[240:]).float().mean().item())  # <- here
torch.save(average.model.state_dict(), "average.pt")
