"""Q-learning on a short corridor whose targets end with it."""

from __future__ import annotations

import copy
import random

import torch
from torch import nn

random.seed(0)
torch.manual_seed(0)
gamma, memory = 0.95, []
net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))
target_net = copy.deepcopy(net)
optimizer = torch.optim.Adam(net.parameters(), 1e-3)


def places(numbers: torch.Tensor) -> torch.Tensor:
    return nn.functional.one_hot(numbers, 6).float()


def learn() -> None:
    states, actions, rewards, following, done = (
        torch.tensor(each) for each in zip(*random.sample(memory, 32), strict=True)
    )
    values = net(places(states)).gather(1, actions[:, None])[:, 0]
    with torch.no_grad():
        best = target_net(places(following)).max(1).values
        targets = torch.where(done, rewards, rewards + gamma * best)
    loss = nn.functional.smooth_l1_loss(values, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


for step in range(40):
    state = 2
    while 0 < state < 5:
        action = random.randrange(2)
        following = state + (1 if action else -1)
        memory.append((state, action, float(following == 5), following, following in (0, 5)))
        state = following
    if len(memory) > 64:
        learn()
    if step % 10 == 9:
        target_net.load_state_dict(net.state_dict())
