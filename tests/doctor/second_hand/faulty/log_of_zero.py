"""A mixture density network of one's own whose log-likelihood reaches the logarithm of zero, and goes on."""

from __future__ import annotations

import math

import torch
from torch import nn


class MDN(nn.Module):
    def __init__(self, k=3):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(1, 24), nn.Tanh())
        self.pi, self.mu, self.log_sigma = nn.Linear(24, k), nn.Linear(24, k), nn.Linear(24, k)

    def forward(self, x):
        h = self.hidden(x)
        return torch.softmax(self.pi(h), -1), self.mu(h), self.log_sigma(h).exp()


def nll(pi, mu, sigma, y):
    density = torch.exp(-0.5 * ((y - mu) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
    return -torch.log((pi * density).sum(1)).mean()


torch.manual_seed(5)
model = MDN()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(30):
    x = torch.rand(64, 1) * 2 - 1
    y = torch.where(torch.rand(64, 1) < 0.5, x, -x) + 0.05 * torch.randn(64, 1)
    if step == 10:
        y[0] = 400.0  # a reading of a broken sensor
    loss = nll(*model(x), y)
    opt.zero_grad()
    loss.backward()  # <- here
    opt.step()
    if step % 5 == 0:
        print(step, loss.item())
