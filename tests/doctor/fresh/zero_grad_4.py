"""zero_grad is named and not called."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
net = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 4))
opt = optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
data = DataLoader(TensorDataset(torch.rand(60, 4, 4), torch.arange(60) % 4), batch_size=12, shuffle=True)
for _epoch in range(2):
    for images, target in data:
        opt.zero_grad  # noqa: B018
        loss = F.cross_entropy(net(images), target)
        loss.backward()
        opt.step()  # <- here
