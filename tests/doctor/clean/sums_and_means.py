"""Losses of several terms: sums over values that are means over rows, small weights of sums, and penalties of weights as large as the batch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
windows = torch.randn(512, 30).cumsum(1) / 5


def train(make_loss, modules):
    parameters = [each for module in modules for each in module.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    for x in windows.split(32):
        optimizer.zero_grad()
        make_loss(x).backward()
        optimizer.step()


encoder, decoder = nn.Linear(30, 8), nn.Linear(4, 30)


def parts(x):
    mean, log_var = encoder(x).chunk(2, dim=1)
    again = decoder(mean + torch.randn_like(mean) * (0.5 * log_var).exp())
    return again, -0.5 * (1 + log_var - mean.pow(2) - log_var.exp())


def summed(x):
    again, divergence = parts(x)
    return F.mse_loss(again, x, reduction="sum") + divergence.sum()


def by_rows(x):
    again, divergence = parts(x)
    return F.mse_loss(again, x) * x.shape[1] + divergence.sum(1).mean() + divergence.sum() / len(x)


hidden = nn.Linear(30, 32)
last = nn.Linear(32, 30)


def sparse(x):
    active = torch.relu(hidden(x))
    straight = hidden.weight @ hidden.weight.T - torch.eye(32)
    return F.mse_loss(last(active), x) + 1e-3 * active.abs().sum() + straight.square().sum()


train(summed, [encoder, decoder])
train(by_rows, [encoder, decoder])
train(sparse, [hidden, last])
