"""Schedules that wait for the right way: a share of misses to fall, a share of hits to rise, a loss to fall."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

torch.manual_seed(3)
rows = torch.randn(240, 8)
labels = (rows[:, 0] * rows[:, 1] > 0).long()
for kind in ("misses", "hits", "loss"):
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)
    schedule = ReduceLROnPlateau(optimizer, mode="max" if kind == "hits" else "min", patience=1)
    for _epoch in range(5):
        model.train()
        total = 0.0
        for batch in torch.randperm(180).split(30):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(rows[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            total += loss.item() / 6
        model.eval()
        with torch.no_grad():
            right = (model(rows[180:]).argmax(1) == labels[180:]).float().mean().item()
        schedule.step({"misses": 1 - right, "hits": right, "loss": total}[kind])
    print(kind, right, optimizer.param_groups[0]["lr"])
