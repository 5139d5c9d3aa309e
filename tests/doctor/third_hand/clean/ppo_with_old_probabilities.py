"""Proximal policy optimisation."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(actor.parameters(), lr=3e-3)
for _iteration in range(10):
    states = torch.randn(128, 6)
    with torch.no_grad():
        policy = Categorical(logits=actor(states))
        actions = policy.sample()
        old_log_probs = policy.log_prob(actions)
    rewards = (actions == states[:, :3].argmax(1)).float()
    advantages = rewards - rewards.mean()
    for _ in range(3):
        log_probs = Categorical(logits=actor(states)).log_prob(actions)
        ratio = torch.exp(log_probs - old_log_probs)
        loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(loss.item())
