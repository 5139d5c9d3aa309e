"""A moving average under names of its own that moves, a target network that is copied as a whole, and a teacher that stands still on purpose."""

from __future__ import annotations

import copy

import torch
from torch import nn

torch.manual_seed(0)
kind = torch.randint(0, 4, (320,))
rows = torch.randn(320, 12) + torch.randn(4, 12)[kind]
net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
model = nn.Sequential()
model.add_module("wrapped", net)
average, target, teacher = (copy.deepcopy(net).requires_grad_(False) for _ in range(3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(4):
    for batch in torch.randperm(256).split(32):
        with torch.no_grad():
            wanted = teacher(rows[batch]).softmax(1)
        scores = model(rows[batch])
        loss = nn.functional.cross_entropy(scores, kind[batch])
        loss = loss + 0.1 * nn.functional.kl_div(scores.log_softmax(1), wanted, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, value in zip(average.parameters(), net.parameters(), strict=True):
                mine.lerp_(value, 0.1)
    target.load_state_dict(net.state_dict())
    with torch.no_grad():
        for each in (average, target):
            print(epoch, (each(rows[256:]).argmax(1) == kind[256:]).float().mean().item())
torch.save(average.state_dict(), "average.pt")
