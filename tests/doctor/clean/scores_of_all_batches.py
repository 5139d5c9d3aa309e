"""Losses of evaluations that are summed up, collected, of one batch alone, or of each batch by itself; the last one is shown besides."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
clean = torch.sin(torch.rand(200, 1) * 6 + torch.arange(24) / 3)
model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 24))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
criterion = nn.MSELoss()
for epoch in range(3):
    for x in clean[torch.randperm(160)].split(32):
        optimizer.zero_grad()
        loss = criterion(model(x + 0.1 * torch.randn_like(x)), x)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
    model.eval()
    with torch.no_grad():
        total, losses = 0.0, []
        for x in clean[160:].split(10):
            loss = criterion(model(x), x)
            total += loss.item() * len(x)
        print(total / 40, "the last one", loss.item())
        for x in clean[160:].split(10):
            error = criterion(model(x), x)
            losses.append(error)
        print(torch.stack(losses).mean().item(), error.item())
        for x in clean[160:].split(40):
            whole = criterion(model(x), x).item()
        print(whole)
        for x in clean[160:].split(20):
            each = criterion(model(x), x).item()
            print(each)
        each = 0
        print(each)
    model.train()
