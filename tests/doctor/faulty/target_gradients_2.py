"""An actor and a critic whose normalised advantage carries the graph of the critic."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
body = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
actor, critic = nn.Linear(32, 3), nn.Linear(32, 1)
params = [*body.parameters(), *actor.parameters(), *critic.parameters()]
opt = torch.optim.Adam(params, lr=3e-3)
state = torch.randn(32, 4)
for it in range(60):
    h = body(state)
    dist, value = Categorical(logits=actor(h)), critic(h).squeeze(-1)
    action = dist.sample()
    reward = (action == (state[:, 0] > 0).long()).float()
    nxt = torch.randn(32, 4)
    with torch.no_grad():
        target = reward + 0.9 * critic(body(nxt)).squeeze(-1)
    adv = target - value  # <- here
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    pl = -(dist.log_prob(action) * adv).mean()
    vl = nn.functional.mse_loss(value, target)
    loss = pl + 0.5 * vl - 0.01 * dist.entropy().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    state = nxt
    if it % 20 == 0:
        print(it, reward.mean().item(), vl.item())
