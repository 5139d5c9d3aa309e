"""Losses that are kept as numbers or detached, and log-probabilities whose graphs are held until their episode is learned."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Linear(4, 2)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
total, history, detached = 0.0, [], []
for _ in range(15):
    log_probabilities = []
    for _ in range(12):
        drawn = torch.distributions.Categorical(logits=policy(torch.randn(4)))
        action = drawn.sample()
        log_probabilities.append(drawn.log_prob(action))
    loss = -torch.stack(log_probabilities).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.item()
    history.append(float(loss))
    detached.append(loss.detach())
print(total, sum(history), torch.stack(detached).mean())
