"""A policy gradient that reads an action at each step of an episode and learns at its end."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for _ in range(12):
    state, logs, rewards = torch.randn(4), [], []
    for _ in range(8):
        choice = torch.distributions.Categorical(logits=policy(state[None])[0])
        action = choice.sample()
        logs.append(choice.log_prob(action))
        rewards.append(float(action.item() == int(state[0] > 0)))
        state = torch.randn(4)
    returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
    loss = -(torch.stack(logs) * (returns - returns.mean())).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
