"""Proximal policy optimisation."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(actor.parameters(), lr=3e-3)


def collect(n=128):
    states = torch.randn(n, 6)
    with torch.no_grad():
        actions = Categorical(logits=actor(states)).sample()
    rewards = (actions == states[:, :3].argmax(1)).float()
    return states, actions, rewards - rewards.mean()


for _iteration in range(10):
    states, actions, advantages = collect()
    for _ in range(3):
        log_probs = Categorical(logits=actor(states)).log_prob(actions)
        old_log_probs = Categorical(logits=actor(states)).log_prob(actions)  # <- here
        ratio = torch.exp(log_probs - old_log_probs)  # <- here
        clipped = ratio.clamp(0.8, 1.2)
        loss = -torch.min(ratio * advantages, clipped * advantages).mean()
        optimizer.zero_grad()
        loss.backward()  # <- here
        optimizer.step()  # <- here
print("loss", loss.item())
