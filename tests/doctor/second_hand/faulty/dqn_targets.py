"""Q-learning from replay whose target is computed by the net that learns, with its gradient."""

from __future__ import annotations

import random
from collections import deque, namedtuple

import torch
import torch.nn as nn
import torch.optim as optim

Transition = namedtuple("Transition", ("state", "action", "reward", "next_state", "done"))


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        return Transition(*map(torch.stack, zip(*random.sample(self.memory, batch_size), strict=True)))

    def __len__(self):
        return len(self.memory)


class DQN(nn.Module):
    def __init__(self, n_observations, n_actions):
        super().__init__()
        self.layer1 = nn.Linear(n_observations, 32)
        self.layer2 = nn.Linear(32, n_actions)

    def forward(self, x):
        return self.layer2(torch.relu(self.layer1(x)))


random.seed(1)
torch.manual_seed(1)
BATCH_SIZE, GAMMA, LR = 32, 0.95, 1e-3
net = DQN(2, 3)
optimizer = optim.Adam(net.parameters(), lr=LR)
memory = ReplayMemory(500)
loss_fn = nn.SmoothL1Loss()


def optimize_model():
    if len(memory) < BATCH_SIZE:
        return None
    batch = memory.sample(BATCH_SIZE)
    state_action_values = net(batch.state).gather(1, batch.action.unsqueeze(1)).squeeze(1)
    next_state_values = net(batch.next_state).max(1).values
    expected = batch.reward + GAMMA * next_state_values * (1 - batch.done)
    loss = loss_fn(state_action_values, expected)  # <- here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


position = torch.rand(2) * 2 - 1
for step in range(160):
    if random.random() < 0.3:
        action = torch.tensor(random.randrange(3))
    else:
        with torch.no_grad():
            action = net(position).argmax()
    moved = (position + 0.2 * (action.float() - 1) * torch.tensor([1.0, 0.5])).clamp(-1, 1)
    reward = -moved.abs().sum()
    done = (moved.abs().max() < 0.1).float()
    memory.push(position, action, reward, moved, done)
    position = torch.rand(2) * 2 - 1 if done or step % 20 == 19 else moved
    last = optimize_model()
print("loss", last)
