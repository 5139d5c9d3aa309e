"""Proximal policy optimisation: acting without a graph, then several passes over what was seen."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        self.actor = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, x, action=None):
        policy = Categorical(logits=self.actor(x))
        action = policy.sample() if action is None else action
        return action, policy.log_prob(action), policy.entropy(), self.critic(x)


agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
for update in range(3):
    optimizer.param_groups[0]["lr"] = (1 - update / 3) * 2.5e-4
    seen, actions, log_probs = torch.randn(16, 8, 4), [], []
    for observations in seen:
        with torch.no_grad():
            action, log_prob, _, _ = agent(observations)
        actions.append(action)
        log_probs.append(log_prob)
    states, taken, before, returns = (
        seen.flatten(0, 1),
        torch.cat(actions),
        torch.cat(log_probs),
        torch.randn(128),
    )
    for _epoch in range(2):
        for chosen in torch.randperm(128).split(32):
            _, log_prob, entropy, value = agent(states[chosen], taken[chosen])
            ratio = (log_prob - before[chosen]).exp()
            policy_loss = -(ratio.clamp(0.8, 1.2) * returns[chosen]).mean()
            loss = (
                policy_loss + 0.5 * (value.view(-1) - returns[chosen]).pow(2).mean() - 0.01 * entropy.mean()
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
