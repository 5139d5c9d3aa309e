"""Advantage actor-critic with a shared trunk: the value's target is detached, the entropy is a bonus."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(543)


class Pendulum2:
    """A point on a line that has to be held near zero."""

    def reset(self):
        self.x, self.v, self.t = float(torch.rand(()) - 0.5), 0.0, 0
        return torch.tensor([self.x, self.v])

    def step(self, action):
        self.v += 0.1 * (1 if action == 1 else -1) - 0.02 * self.v
        self.x += 0.2 * self.v
        self.t += 1
        done = abs(self.x) > 1 or self.t >= 25
        return torch.tensor([self.x, self.v]), 1.0 - abs(self.x), done


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(2, 48)
        self.action_head = nn.Linear(48, 2)
        self.value_head = nn.Linear(48, 1)

    def forward(self, x):
        x = torch.relu(self.affine1(x))
        return torch.softmax(self.action_head(x), dim=-1), self.value_head(x).squeeze(-1)


model = Policy()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
env = Pendulum2()
for _i_episode in range(15):
    state, done = env.reset(), False
    saved, rewards, entropies = [], [], []
    while not done:
        probs, value = model(state)
        m = Categorical(probs)
        action = m.sample()
        saved.append((m.log_prob(action), value))
        entropies.append(m.entropy())
        state, reward, done = env.step(action.item())
        rewards.append(reward)
    R, returns = 0.0, []
    for r in rewards[::-1]:
        R = r + 0.95 * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-8)
    log_probs = torch.stack([p for p, _ in saved])
    values = torch.stack([v for _, v in saved])
    advantage = returns - values.detach()
    loss = (-log_probs * advantage).mean() + nn.functional.smooth_l1_loss(values, returns)
    loss = loss - 0.01 * torch.stack(entropies).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("reward", sum(rewards))
