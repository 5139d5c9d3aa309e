"""REINFORCE for a bot on a grid which looks for a target."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributions import Categorical

random.seed(0)
torch.manual_seed(0)

SIZE = 7
MOVES = [(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)]
GAMMA = 0.9


class Grid:
    def reset(self):
        self.bot = [random.randrange(SIZE), random.randrange(SIZE)]
        self.target = [random.randrange(SIZE), random.randrange(SIZE)]
        while self.target == self.bot:
            self.target = [random.randrange(SIZE), random.randrange(SIZE)]
        return self.state()

    def state(self):
        return torch.tensor([(self.target[0] - self.bot[0]) / SIZE, (self.target[1] - self.bot[1]) / SIZE,
                             self.bot[0] / SIZE - 0.5, self.bot[1] / SIZE - 0.5])

    def distance(self):
        return abs(self.bot[0] - self.target[0]) + abs(self.bot[1] - self.target[1])

    def step(self, action):
        before = self.distance()
        new = [self.bot[0] + MOVES[action][0], self.bot[1] + MOVES[action][1]]
        if not (0 <= new[0] < SIZE and 0 <= new[1] < SIZE):
            return self.state(), -0.5, False
        self.bot = new
        after = self.distance()
        if after == 0:
            return self.state(), 10.0, True
        return self.state(), float(before - after), False


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear1 = nn.Linear(4, 64)
        self.linear2 = nn.Linear(64, 64)
        self.linear3 = nn.Linear(64, len(MOVES))

    def forward(self, x):
        x = F.relu(self.linear1(x))
        x = F.relu(self.linear2(x))
        return F.softmax(self.linear3(x), dim=-1)


def episode(env, policy):
    state, log_probs, rewards, done = env.reset(), [], [], False
    while not done and len(rewards) < 20:
        dist = Categorical(policy(state))
        action = dist.sample()
        log_probs.append(dist.log_prob(action))
        state, reward, done = env.step(action.item())
        rewards.append(reward)
    return log_probs, rewards


policy = Policy()
optimizer = optim.Adam(policy.parameters(), lr=0.1)
env = Grid()
history = []

for update in range(80):
    all_log_probs, all_returns = [], []
    for _ in range(6):
        log_probs, rewards = episode(env, policy)
        running, returns = 0.0, []
        for r in reversed(rewards):
            running = r + GAMMA * running
            returns.insert(0, running)
        all_log_probs += log_probs
        all_returns += returns
        history.append(sum(rewards))
    returns = torch.tensor(all_returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    loss = -(torch.stack(all_log_probs) * returns).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if update % 20 == 19:
        print(f"update {update + 1} mean reward of the last 120 episodes {sum(history[-120:]) / 120:.2f}")

policy.eval()
with torch.no_grad():
    found = sum(sum(r > 5 for r in episode(env, policy)[1]) for _ in range(100))
print(f"targets acquired in 100 test episodes: {found}")
