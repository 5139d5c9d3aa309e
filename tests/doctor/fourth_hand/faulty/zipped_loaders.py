"""Pose regression from two loaders."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
joints = torch.randn(240, 18)
angles = joints[:, :3].tanh()
inputs = DataLoader(joints, batch_size=24, shuffle=True)
targets = DataLoader(angles, batch_size=24, shuffle=True)  # <- here
net = nn.Sequential(nn.Linear(18, 48), nn.ReLU(), nn.Linear(48, 3))
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
for epoch in range(4):
    for x, y in zip(inputs, targets, strict=False):  # <- here
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
