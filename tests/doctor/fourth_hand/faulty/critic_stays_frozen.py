"""Domain adversary that is frozen for good."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
here, there = torch.randn(200, 9), torch.randn(200, 9) * 1.4 + 0.5
label = (here[:, 0] > 0).long()
features, classify = nn.Sequential(nn.Linear(9, 24), nn.ReLU()), nn.Linear(24, 2)
critic = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 1))
opt_f = torch.optim.Adam([*features.parameters(), *classify.parameters()], lr=1e-3)
opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3)
bce = nn.functional.binary_cross_entropy_with_logits
for _step in range(40):
    rows = torch.randint(0, 200, (32,))
    a, b = features(here[rows]), features(there[rows])
    if any(p.requires_grad for p in critic.parameters()):
        c_loss = bce(critic(a.detach()), torch.ones(32, 1)) + bce(critic(b.detach()), torch.zeros(32, 1))
        opt_c.zero_grad()
        c_loss.backward()
        opt_c.step()
    critic.requires_grad_(False)  # <- here
    loss = nn.functional.cross_entropy(classify(a), label[rows]) + 0.1 * bce(critic(b), torch.ones(32, 1))
    opt_f.zero_grad()
    loss.backward()
    opt_f.step()
print(loss.item(), c_loss.item())
