"""Anomaly mode around one update, a profiler by a schedule, numbers read now and then."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
inputs = torch.randn(64, 5)


def update(rows):
    loss = nn.functional.mse_loss(model(rows), rows[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


with torch.autograd.detect_anomaly():
    update(inputs[:16])
schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
total = torch.zeros(())
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule) as profiler:
    for step in range(20):
        total += update(inputs[step : step + 16])
        profiler.step()
        if step % 10 == 9:
            print(total.item() / 10)
            total.zero_()
