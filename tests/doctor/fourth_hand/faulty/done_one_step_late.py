"""Actor and critic with generalised advantages."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=3e-3)
for _update in range(20):
    at, states, actions, rewards, dones = 0, [], [], [], []
    for _ in range(64):
        state = torch.tensor([at / 5, 1.0])
        with torch.no_grad():
            action = Categorical(logits=actor(state)).sample()
        at += 1 if action else -1
        done = abs(at) >= 5
        states.append(state)
        actions.append(action)
        rewards.append(1.0 if at >= 5 else -0.02)
        dones.append(float(done))
        at = 0 if done else at
    states, actions = torch.stack(states), torch.stack(actions)
    with torch.no_grad():
        values = critic(states).squeeze(1)
    advantages, running = torch.zeros(64), 0.0
    for t in reversed(range(63)):
        alive = 1 - dones[t + 1]  # <- here
        delta = rewards[t] + 0.97 * values[t + 1] * alive - values[t]
        running = delta + 0.97 * 0.95 * alive * running
        advantages[t] = running
    log_prob = Categorical(logits=actor(states)).log_prob(actions)
    loss = -(log_prob * advantages).mean() + (critic(states).squeeze(1) - (values + advantages)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(sum(rewards))
