"""A run that is interrupted and resumed with all it needs: weights, moments, schedule, epoch."""

from __future__ import annotations

import os
import tempfile

import torch
from torch import nn


def make(total):
    model = nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
    return model, optimizer, scheduler


def train(path, until, total=30):
    model, optimizer, scheduler = make(total)
    first = 0
    if os.path.isfile(path):
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        first = saved["update"]
    for _update in range(first, until):
        x = torch.randn(40, 12)
        y = x[:, :3].argmax(1)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "update": until,
        },
        path,
    )
    print(until, loss.item())


torch.manual_seed(0)
path = os.path.join(tempfile.mkdtemp(), "state.pt")
train(path, until=15)
train(path, until=30)
