"""Batches that are mixed by one order for inputs and labels: with labels of numbers, of two losses, smoothed, rows that are mixed without labels, and pairs of rows."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
kind = torch.randint(0, 5, (320,))
table = torch.randn(320, 9) + 0.4 * kind[:, None]
loader = DataLoader(TensorDataset(table, kind), batch_size=32, shuffle=True)


def of_numbers(model, x, y):
    share, order = torch.rand(1).item(), torch.randperm(len(x))
    y = nn.functional.one_hot(y, 5).float()
    y = y * 0.9 + 0.02
    return nn.functional.cross_entropy(
        model(share * x + (1 - share) * x[order]), share * y + (1 - share) * y[order]
    )


def of_two(model, x, y):
    share, order = torch.rand(1).item(), torch.randperm(len(x))
    scores = model(share * x + (1 - share) * x[order])
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    return share * criterion(scores, y) + (1 - share) * criterion(scores, y[order])


def of_larger(model, x, y):
    order = torch.randperm(len(x))
    return nn.functional.cross_entropy(model(0.8 * x + 0.2 * x[order]), y)


def noisy(model, x, y):
    return nn.functional.cross_entropy(model(x + 0.1 * torch.randn_like(x)), y)


def of_two_kinds(model, x, y):
    share, order = torch.rand(1).item(), torch.randperm(len(x))
    scores, even = model(share * x + (1 - share) * x[order]), (y % 2)[:, None].float()
    loss = nn.functional.binary_cross_entropy_with_logits
    of_kinds = share * nn.functional.cross_entropy(scores, y) + (1 - share) * nn.functional.cross_entropy(
        scores, y[order]
    )
    return of_kinds + share * loss(scores[:, :1], even) + (1 - share) * loss(scores[:, :1], even[order])


def of_pairs(model, x, y):
    order = torch.randperm(len(x))
    first, other = model(x), x[order]
    apart = (first - model(other)).norm(dim=1)
    return nn.functional.binary_cross_entropy_with_logits(1 - apart, (y == y[order]).float())


ways = of_numbers, of_two, of_larger, noisy, of_two_kinds, of_pairs
models = [nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 5)) for _ in ways]
optimizers = [torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9) for model in models]
for x, y in loader:  # side by side, so that the first updates have all of them
    for make_loss, model, optimizer in zip(ways, models, optimizers, strict=True):
        optimizer.zero_grad()
        make_loss(model, x, y).backward()
        optimizer.step()
