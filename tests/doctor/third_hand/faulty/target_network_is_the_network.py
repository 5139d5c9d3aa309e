"""Q-learning from replay."""

from __future__ import annotations

import random
from collections import deque

import torch
from torch import nn


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, state):
        return self.layers(state)


torch.manual_seed(0)
random.seed(0)
policy_net = QNet()
target_net = policy_net  # <- here
target_net.load_state_dict(policy_net.state_dict())  # <- here
optimizer = torch.optim.AdamW(policy_net.parameters(), lr=1e-3)
memory = deque(maxlen=500)
state = torch.randn(4)
for step in range(260):
    with torch.no_grad():
        action = random.randrange(2) if random.random() < 0.3 else policy_net(state).argmax().item()
    following = (0.9 * state + 0.1 * torch.randn(4)).clone()
    reward = float((state[0] > 0) == (action == 1))
    memory.append((state, action, reward, following))
    state = following
    if len(memory) < 64:
        continue
    states, actions, rewards, nexts = zip(*random.sample(memory, 32), strict=True)
    values = policy_net(torch.stack(states)).gather(1, torch.tensor(actions)[:, None]).squeeze(1)
    with torch.no_grad():
        best = target_net(torch.stack(nexts)).max(1).values
    loss = nn.functional.smooth_l1_loss(values, torch.tensor(rewards) + 0.9 * best)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        target_net.load_state_dict(policy_net.state_dict())  # <- here
print(loss.item())
