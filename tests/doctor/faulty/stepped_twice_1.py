"""A denoiser whose helper steps the optimizer that the loop steps too."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 20))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def learn(batch):
    optimizer.zero_grad()
    loss = nn.functional.l1_loss(model(batch + 0.1 * torch.randn_like(batch)), batch)
    loss.backward()
    optimizer.step()
    return loss


for _update in range(20):
    loss = learn(torch.randn(32, 20))
    optimizer.step()  # <- here
print(loss.item())
