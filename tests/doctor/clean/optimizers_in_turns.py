"""A finder's optimizer that is thrown away, one that another replaces, two that step in turns, and one whose windows are long."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
body, head = nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 2)


def loss_of(rows):
    return nn.functional.cross_entropy(head(body(rows)), (rows[:, 0] > 0).long())


trial = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=1e-5)
start = [each.detach().clone() for each in (*body.parameters(), *head.parameters())]
for rate in (1e-5, 1e-4, 1e-3):
    trial.param_groups[0]["lr"] = rate
    trial.zero_grad()
    loss_of(torch.randn(8, 8)).backward()
    trial.step()
with torch.no_grad():
    for each, value in zip((*body.parameters(), *head.parameters()), start, strict=True):
        each.copy_(value)
unused = torch.optim.SGD(head.parameters(), lr=1e-2)  # made before it was known that Adam suits
first = torch.optim.Adam(body.parameters(), lr=1e-2)
second = torch.optim.Adam(head.parameters(), lr=1e-2)
for step in range(24):
    first.zero_grad()
    second.zero_grad()
    loss_of(torch.randn(16, 8)).backward()
    (first if step % 2 else second).step()
slow = torch.optim.SGD(head.parameters(), lr=1e-3)
for step in range(16):
    (loss_of(torch.randn(4, 8)) / 8).backward()
    if step % 8 == 7:
        slow.step()
        slow.zero_grad()
        body.zero_grad()
