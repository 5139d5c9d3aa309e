"""REINFORCE on a corridor: the policy's probabilities are given to the distribution as logits."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(9)
LENGTH = 6


class Corridor:
    def reset(self):
        self.place, self.time = 2, 0
        return self._state()

    def _state(self):
        state = torch.zeros(LENGTH)
        state[self.place] = 1.0
        return state

    def step(self, action):
        self.time += 1
        self.place = max(0, min(LENGTH - 1, self.place + (1 if action == 1 else -1)))
        done = self.place == LENGTH - 1 or self.time >= 15
        return self._state(), (1.0 if self.place == LENGTH - 1 else -0.05), done


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(LENGTH, 24)
        self.affine2 = nn.Linear(24, 2)

    def forward(self, x):
        return torch.softmax(self.affine2(torch.relu(self.affine1(x))), dim=-1)


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
env = Corridor()
for _episode in range(25):
    state, done = env.reset(), False
    log_probs, rewards = [], []
    while not done:
        dist = Categorical(logits=policy(state))  # <- here
        action = dist.sample()
        log_probs.append(dist.log_prob(action))
        state, reward, done = env.step(action.item())
        rewards.append(reward)
    returns, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + 0.99 * total
        returns.insert(0, total)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    loss = -(torch.stack(log_probs) * returns).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last episode", sum(rewards))
