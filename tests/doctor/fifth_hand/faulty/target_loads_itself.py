"""Two agents in a grid, values mixed (QMIX)."""

from __future__ import annotations

import random
from collections import deque

import torch
from torch import nn


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, observation):
        return self.body(observation)


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Linear(8, 2), nn.Linear(8, 1)

    def forward(self, values, state):
        return (self.weight(state).abs() * values).sum(1, keepdim=True) + self.bias(state)


class Policy:
    def __init__(self):
        self.agent, self.target_agent = Agent(), Agent()
        self.mixer, self.target_mixer = Mixer(), Mixer()
        self.target_agent.load_state_dict(self.agent.state_dict())
        self.target_mixer.load_state_dict(self.mixer.state_dict())
        self.parameters = [*self.agent.parameters(), *self.mixer.parameters()]
        self.optimizer = torch.optim.RMSprop(self.parameters, lr=5e-4)
        self.learned = 0

    def learn(self, batch):
        observations, actions, rewards, later, done = batch
        chosen = self.agent(observations).gather(2, actions[..., None]).squeeze(2)
        q = self.mixer(chosen, observations.flatten(1))
        with torch.no_grad():
            best = self.target_agent(later).max(2).values
            goal = rewards + 0.95 * (1 - done) * self.target_mixer(best, later.flatten(1))
        loss = ((q - goal) ** 2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 10)
        self.optimizer.step()
        self.learned += 1
        if self.learned % 20 == 0:
            self.target_agent.load_state_dict(self.agent.state_dict())
            self.target_mixer.load_state_dict(self.target_mixer.state_dict())  # <- here
        return loss.item()


torch.manual_seed(0)
random.seed(0)
policy, memory = Policy(), deque(maxlen=2000)
where = torch.randint(0, 5, (2, 2)).float()
for moment in range(400):
    observations = torch.cat([where, where.flip(0)], 1) / 4
    with torch.no_grad():
        greedy = policy.agent(observations).argmax(1)
    actions = torch.tensor([random.randrange(3) if random.random() < 0.2 else int(a) for a in greedy])
    where = (where + (actions[:, None] - 1) * torch.tensor([1.0, 0.0])).clamp(0, 4)
    reward = -(where[0] - where[1]).abs().sum()
    done = float(reward == 0)
    later = torch.cat([where, where.flip(0)], 1) / 4
    memory.append((observations, actions, reward.view(1), later, torch.tensor([done])))
    if done:
        where = torch.randint(0, 5, (2, 2)).float()
    if len(memory) > 64 and moment % 2 == 0:
        rows = random.sample(memory, 32)
        loss = policy.learn([torch.stack(column) for column in zip(*rows, strict=True)])
        if moment % 100 == 0:
            print(moment, loss)
