"""A moving average that is put in for the validation and taken out, the best weights that are restored, and pruned ones that go on."""

from __future__ import annotations

import copy

import torch
from torch import nn

torch.manual_seed(0)
kind = torch.randint(0, 4, (320,))
rows = torch.randn(320, 12) + torch.randn(4, 12)[kind]


def network():
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))


def epoch_of(model, optimizer, after=lambda: None):
    for batch in torch.randperm(256).split(32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows[batch]), kind[batch]).backward()
        optimizer.step()
        after()


@torch.no_grad()
def score(model):
    return (model(rows[256:]).argmax(1) == kind[256:]).float().mean().item()


model = network()
average = [each.detach().clone() for each in model.parameters()]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def follow():
    for mine, value in zip(average, model.parameters(), strict=True):
        mine.lerp_(value.detach(), 0.1)


for epoch in range(3):
    epoch_of(model, optimizer, follow)
    kept = [each.detach().clone() for each in model.parameters()]
    for mine, value in zip(average, model.parameters(), strict=True):
        value.data.copy_(mine)
    print("average", epoch, score(model))
    for mine, value in zip(kept, model.parameters(), strict=True):
        value.data.copy_(mine)

model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
best, state = 0.0, None
for _epoch in range(6):
    epoch_of(model, optimizer)
    if (now := score(model)) >= best:
        best, state = now, copy.deepcopy(model.state_dict())
    elif state is not None:
        model.load_state_dict(state)
        print("best again", score(model))

model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for part in (0.2, 0.4, 0.6):
    epoch_of(model, optimizer)
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(value.abs() >= value.abs().quantile(part))
    print("pruned", part, score(model))
