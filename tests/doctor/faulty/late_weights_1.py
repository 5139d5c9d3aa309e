"""A value network on rows that were drawn by their priority, and are weighed for that when their loss is a mean already."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
states, actions, rewards = torch.randn(400, 4), torch.randint(0, 2, (400,)), torch.randn(400)
network = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(network.parameters(), 1e-3)
priorities = torch.ones(400)
for _ in range(60):
    chances = priorities / priorities.sum()
    drawn = torch.multinomial(chances, 32)
    weights = (400 * chances[drawn]) ** -0.4
    values = network(states[drawn]).gather(1, actions[drawn, None]).squeeze(1)
    loss = nn.functional.smooth_l1_loss(values, rewards[drawn])
    loss = (weights / weights.max() * loss).mean()  # <- here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    priorities[drawn] = (values - rewards[drawn]).abs().detach() + 0.01
print(loss.item())
