"""Actor and critic."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical


class Walk:
    def __init__(self):
        self.at = 0

    def step(self, action):
        self.at += 1 if action == 1 else -1
        done = abs(self.at) >= 4
        return torch.tensor([self.at / 4.0, 1.0]), (1.0 if self.at >= 4 else -0.05), done


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 32)
        self.actor = nn.Linear(32, 2)
        self.critic = nn.Linear(32, 1)

    def forward(self, state):
        hidden = torch.relu(self.body(state))
        return Categorical(logits=self.actor(hidden)), self.critic(hidden)


torch.manual_seed(0)
policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
for _episode in range(40):
    game, state, done = Walk(), torch.tensor([0.0, 1.0]), False
    saved, rewards = [], []
    while not done and len(rewards) < 40:
        choice, value = policy(state)
        action = choice.sample()
        saved.append((choice.log_prob(action), value))
        state, reward, done = game.step(action.item())
        rewards.append(reward)
    returns, running = [], 0.0
    for reward in reversed(rewards):
        running = reward + 0.95 * running
        returns.insert(0, running)
    actor_loss = critic_loss = 0.0
    for (log_prob, value), target in zip(saved, returns, strict=True):
        advantage = target - value  # <- here
        actor_loss = actor_loss - log_prob * advantage.squeeze()  # <- here
        critic_loss = critic_loss + F.smooth_l1_loss(value, torch.tensor([target]))
    optimizer.zero_grad()
    (actor_loss + critic_loss).backward()  # <- here
    optimizer.step()
print(sum(rewards))
