"""The DQN tutorial: a policy and a target network, a replay memory, value clipping."""

from __future__ import annotations

import random

import torch
from torch import nn

torch.manual_seed(0)
random.seed(0)


def network():
    return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))


policy_net, target_net = network(), network()
target_net.load_state_dict(policy_net.state_dict())
optimizer = torch.optim.AdamW(policy_net.parameters(), lr=1e-3, amsgrad=True)
memory, state = [], torch.randn(1, 4)
for _step in range(40):
    with torch.no_grad():
        action = policy_net(state).max(1).indices.view(1, 1)
    next_state, reward = torch.randn(1, 4), torch.randn(1)
    memory.append((state, action, next_state, reward))
    state = next_state
    if len(memory) < 16:
        continue
    states, actions, next_states, rewards = map(torch.cat, zip(*random.sample(memory, 16), strict=True))
    values = policy_net(states).gather(1, actions)
    with torch.no_grad():
        next_values = target_net(next_states).max(1).values
    loss = nn.SmoothL1Loss()(values, (next_values * 0.9 + rewards).unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
    with torch.no_grad():
        for target, policy in zip(target_net.parameters(), policy_net.parameters(), strict=True):
            target.copy_(0.99 * target + 0.01 * policy)
torch.save(policy_net.state_dict(), "policy.pt")
