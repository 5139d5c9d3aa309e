"""Double Q-learning: the target net is detached and follows softly, the observations of an epoch are kept as numbers."""

from __future__ import annotations

import copy
import random

import torch
from torch import nn

random.seed(0)
torch.manual_seed(0)


class Agent:
    def __init__(self, tau=0.05, gamma=0.9):
        self.online = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2))
        self.target = copy.deepcopy(self.online)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=2e-3)
        self.tau, self.gamma = tau, gamma

    def act(self, state, epsilon):
        if random.random() < epsilon:
            return random.randrange(2)
        with torch.no_grad():
            return int(self.online(state).argmax())

    def learn(self, batch):
        states, actions, rewards, following = (torch.stack(part) for part in zip(*batch, strict=True))
        with torch.no_grad():
            best = self.online(following).argmax(1, keepdim=True)
            target = rewards + self.gamma * self.target(following).gather(1, best).squeeze(1)
        predicted = self.online(states).gather(1, actions.unsqueeze(1)).squeeze(1)
        loss = nn.functional.smooth_l1_loss(predicted, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=True):
            slow.data.mul_(1 - self.tau).add_(fast.data, alpha=self.tau)
        return loss.item()


agent, memory, losses = Agent(), [], []
state = torch.rand(3)
for step in range(150):
    action = agent.act(state, epsilon=0.2)
    following = (state + 0.1 * torch.tensor([1.0, -1.0, 0.5]) * (2 * action - 1)).clamp(-1, 1)
    memory.append((state, torch.tensor(action), -following.abs().sum(), following))
    state = torch.rand(3) if step % 15 == 14 else following
    if len(memory) >= 32:
        losses.append(agent.learn(random.sample(memory, 32)))
print(sum(losses) / len(losses))
