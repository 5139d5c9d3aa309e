"""An optimizer that sets its learning rate by itself."""

from __future__ import annotations

import torch
from torch import nn
from transformers.optimization import Adafactor

torch.manual_seed(0)
m = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
opt = Adafactor(m.parameters(), relative_step=True, warmup_init=True, scale_parameter=True)
x = torch.randn(256, 6)
y = (x[:, 0] > 0).long()
for _ in range(30):
    i = torch.randint(0, 256, (32,))
    loss = nn.functional.cross_entropy(m(x[i]), y[i])
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
