"""Q-learning from replay."""

from __future__ import annotations

import copy

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
target = copy.deepcopy(policy)
target.load_state_dict(policy.state_dict())
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
states = torch.randn(600, 4)
actions = torch.randint(0, 2, (600,))
rewards = ((states[:, 0] > 0) == (actions == 1)).float()
following = 0.9 * states + 0.1 * torch.randn(600, 4)
for _step in range(80):
    rows = torch.randint(0, 600, (32,))
    values = policy(states[rows]).gather(1, actions[rows, None]).squeeze(1)
    with torch.no_grad():
        best = target(following[rows]).max(1).values
    loss = nn.functional.smooth_l1_loss(values, rewards[rows] + 0.9 * best)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    weights = target.state_dict()
    for name, value in policy.state_dict().items():
        weights[name] = value * 0.05 + weights[name] * 0.95
    target.load_state_dict(weights)
print(loss.item())
